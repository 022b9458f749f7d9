"""Predictions against the real Megatron Core on two ranks of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mcore_ranks import Ranks, Trial, stage, warm_ranks

from orchestrator.config.compose import compose
from orchestrator.plan.candidate import trial_config
from orchestrator.predict.memory import RankMemory, predict_memory
from orchestrator.predict.read import read_effective, read_job
from orchestrator.records.rank import IterationRecord, RankRecord

pytestmark = pytest.mark.integration

SHORT = ["training.train_iters=2", "training.steady_window=[1,2]", "training.seq_length=256", "recompute=control"]
AS_ON_A_GPU = ["model.bias_activation_fusion=true", "model.moe_grouped_gemm=true"]
"""With fused activations and grouped experts, backward reads the same tensors as on a GPU."""
SMALL_THINGS = 1024
"""Bytes that are no parameter: frequencies of rotary embeddings, counters, one step number a parameter."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    folder = tmp_path_factory.mktemp("predict")
    folder.chmod(0o700)
    with warm_ranks(folder) as started:
        yield started


def config_of(*overrides: str) -> dict[str, Any]:
    return trial_config(compose([*SHORT, *overrides]))


def predicted(config: dict[str, Any], rank: int) -> RankMemory:
    prediction = predict_memory(read_job(config).job)
    return prediction.ranks[rank if len(prediction.ranks) > 1 else 0]


def end(record: RankRecord, name: str) -> int:
    found = stage(record, name)
    assert found is not None
    assert found.end_allocated is not None
    return found.end_allocated


@pytest.mark.parametrize(
    ("model", "parallelism", "precision"),
    [
        ("tiny_dense", "two_replicas", "bf16"),
        ("tiny_moe", "two_stages", "fp32"),
        ("tiny_mla_moe", "two_experts", "fp32"),
    ],
)
def test_model_and_optimizer_take_exactly_what_was_predicted(
    ranks: Ranks, model: str, parallelism: str, precision: str
) -> None:
    config = config_of(f"model={model}", f"parallelism={parallelism}", f"precision={precision}")
    trial = ranks.passed(config)
    effective = trial.records[0].effective
    assert effective is not None
    assert read_effective(effective) == read_job(config).job
    for record in trial.records:
        state = predicted(config, record.rank).state
        assert 0 <= end(record, "model_build") - state.weights - state.gradients < SMALL_THINGS
        assert 0 <= end(record, "optimizer_build") - state.built < SMALL_THINGS
        first, second = (synced(iteration) for iteration in record.iterations[:2])
        assert abs(second - first - state.state) < SMALL_THINGS


def synced(iteration: IterationRecord) -> int:
    """What is alive once gradients are synchronised: no activations, no copies of a step."""
    found = stage(iteration, "grad_sync")
    assert found is not None
    assert found.end_allocated is not None
    return found.end_allocated


def test_labels_save_what_was_predicted(ranks: Ranks) -> None:
    base = ["model=tiny_mla_moe", "parallelism=two_experts", *AS_ON_A_GPU]
    control = config_of(*base)
    measured = forward_end(ranks.passed(control))
    kept = predicted(control, 0).kept
    for labels in ("moe", "moe_act,mla_up_proj", "shared_experts,mlp,core_attn"):
        config = config_of(*base, f"recompute_modules=[{labels}]")
        saved = measured - forward_end(ranks.passed(config))
        assert kept - predicted(config, 0).kept == pytest.approx(saved, rel=0.03), labels


def forward_end(trial: Trial) -> float:
    """The mean over both ranks: experts of one get the tokens that the other's do not."""
    ends = []
    for record in trial.records:
        found = stage(record.iterations[0], "forward")
        assert found is not None
        assert found.end_allocated is not None
        ends.append(found.end_allocated)
    return sum(ends) / len(ends)
