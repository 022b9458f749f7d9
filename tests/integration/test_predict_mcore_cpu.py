"""Predictions against the real Megatron Core on two ranks of this machine: its models, layouts and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mcore_ranks import Ranks, Trial, peak, stage, warm_ranks

from orchestrator.config.compose import compose
from orchestrator.plan.candidate import trial_config
from orchestrator.predict.memory import RankMemory, predict_memory
from orchestrator.predict.read import read_effective, read_job
from orchestrator.predict.verdict import range_of
from orchestrator.records.rank import IterationRecord, RankRecord
from orchestrator.vocabulary import Stage

pytestmark = pytest.mark.integration

SHORT = ["training.train_iters=2", "training.steady_window=[1,2]", "training.seq_length=256", "recompute=control"]
AS_ON_A_GPU = "model.bias_activation_fusion=true model.moe_grouped_gemm=true"
"""With fused activations and grouped experts, backward reads the same tensors as on a GPU."""
SMALL_THINGS = 1024
"""Bytes that are no parameter: frequencies of rotary embeddings, counters, one step number a parameter."""

DATA_PARALLEL = "model=tiny_dense parallelism=two_replicas precision=bf16"
TENSOR_PARALLEL = "model=tiny_dense parallelism=tp2"
LATENT_TENSOR_PARALLEL = "model=tiny_mla_moe parallelism=tp2"
PIPELINE = "model=tiny_moe parallelism=two_stages"
INTERLEAVED = "model=tiny_mla_moe parallelism=pp2_vpp2"
EXPERT_PARALLEL = f"model=tiny_mla_moe parallelism=two_experts {AS_ON_A_GPU}"
PREDICTING = f"{PIPELINE} +model.mtp_num_layers=1"
LAYOUTS = [DATA_PARALLEL, TENSOR_PARALLEL, LATENT_TENSOR_PARALLEL, PIPELINE, INTERLEAVED, EXPERT_PARALLEL, PREDICTING]
"""Dense, mixture-of-experts and multi-latent models over every way to spread them, in both number formats, and one that
predicts a token more."""

SAVINGS = [
    (TENSOR_PARALLEL, "recompute_modules=[mlp]"),
    (TENSOR_PARALLEL, "recompute_modules=[core_attn]"),
    (INTERLEAVED, "recompute_modules=[core_attn,layernorm]"),
    (EXPERT_PARALLEL, "recompute_modules=[moe]"),
    (EXPERT_PARALLEL, "recompute_modules=[moe_act,mla_up_proj]"),
    (EXPERT_PARALLEL, "recompute_modules=[shared_experts,mlp,core_attn]"),
]
FULL = [
    (TENSOR_PARALLEL, "recompute=full_uniform recompute_num_layers=2"),
    (INTERLEAVED, "recompute=full_block recompute_num_layers=1"),
    (PREDICTING, "recompute=full_uniform"),
]
RUNS = [(layout, "") for layout in LAYOUTS] + SAVINGS + FULL


class Trials:
    """Each configuration is run once, whatever is asked of it."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._done: dict[str, Trial] = {}

    def passed(self, config: dict[str, Any]) -> Trial:
        key = json.dumps(config, sort_keys=True)
        if key not in self._done:
            self._done[key] = self._ranks.passed(config)
        return self._done[key]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    folder = tmp_path_factory.mktemp("predict")
    folder.chmod(0o700)
    with warm_ranks(folder) as started:
        yield Trials(started)


def config_of(layout: str, recompute: str = "") -> dict[str, Any]:
    return trial_config(compose([*SHORT, *layout.split(), *recompute.split()]))


def predicted(config: dict[str, Any], rank: int) -> RankMemory:
    prediction = predict_memory(read_job(config).job)
    return prediction.ranks[rank if len(prediction.ranks) > 1 else 0]


def end(record: RankRecord | IterationRecord, name: str) -> int:
    found = stage(record, name)
    assert found is not None
    assert found.end_allocated is not None
    return found.end_allocated


def highest(record: RankRecord) -> int:
    rows = [*record.stages, *(row for iteration in record.iterations for row in iteration.stages)]
    return max(row.peak_allocated for row in rows if row.peak_allocated is not None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_gradients_and_optimizer_state_are_exactly_as_predicted(trials: Trials, layout: str) -> None:
    config = config_of(layout)
    trial = trials.passed(config)
    effective = trial.records[0].effective
    assert effective is not None
    assert read_effective(effective) == read_job(config).job
    for record in trial.records:
        state = predicted(config, record.rank).state
        assert 0 <= end(record, "model_build") - state.weights - state.gradients < SMALL_THINGS
        assert 0 <= end(record, "optimizer_build") - state.built < SMALL_THINGS
        # Once gradients are synchronised there are no activations, and no copies of a step.
        first, second = (end(iteration, "grad_sync") for iteration in record.iterations[:2])
        assert abs(second - first - state.state) < SMALL_THINGS


@pytest.mark.parametrize(("layout", "recompute"), SAVINGS)
def test_labels_save_what_was_predicted_within_three_percent(trials: Trials, layout: str, recompute: str) -> None:
    """On each pipeline rank; experts of one rank get tokens that the other's do not, so of those the mean."""
    control, config = config_of(layout), config_of(layout, recompute)
    before, after = (forward_ends(trials.passed(one)) for one in (control, config))
    saved = [was - now for was, now in zip(before, after, strict=True)]
    expected = [predicted(control, rank).kept - predicted(config, rank).kept for rank in range(2)]
    if layout == EXPERT_PARALLEL:
        saved, expected = [sum(saved) / 2], [sum(expected) / 2]
    for measured, kept in zip(saved, expected, strict=True):
        assert kept == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(("layout", "recompute"), RUNS)
def test_the_stated_range_contains_what_was_measured(trials: Trials, layout: str, recompute: str) -> None:
    config = config_of(layout, recompute)
    job = read_job(config).job
    spread = range_of(job, predict_memory(job))
    measured = max(highest(record) for record in trials.passed(config).records)
    assert spread.low <= measured <= spread.high
    if layout != EXPERT_PARALLEL:
        assert spread.high < 1.25 * spread.low, "a range that says nothing contains everything"


@pytest.mark.parametrize("layout", [DATA_PARALLEL, TENSOR_PARALLEL, LATENT_TENSOR_PARALLEL])
def test_ranks_of_one_stage_need_the_same(trials: Trials, layout: str) -> None:
    first, second = (highest(record) for record in trials.passed(config_of(layout)).records)
    assert abs(first - second) < SMALL_THINGS


def forward_ends(trial: Trial) -> list[int]:
    """What is alive at the end of the first iteration's last forward, by rank."""
    return [end(record.iterations[0], "forward") for record in trial.records]


@pytest.mark.parametrize("number", [1, 2])
def test_every_depth_of_multi_token_prediction_takes_what_was_predicted(trials: Trials, number: int) -> None:
    """Beside the same job without any: a depth's own tensors, its logits and loss, and the gradients that wait."""
    without = config_of("model=tiny_dense parallelism=two_replicas")
    config = config_of(f"model=tiny_dense parallelism=two_replicas +model.mtp_num_layers={number}")
    for name in (Stage.FORWARD, Stage.BACKWARD):
        found, before = (peak(trials.passed(one).records[0].iterations[0], name) for one in (config, without))
        expected = predicted(config, 0).first[name] - predicted(without, 0).first[name]
        assert expected == pytest.approx(found - before, rel=0.002), name


def test_long_sequences_of_the_default_model_are_predicted_in_every_stage(trials: Trials) -> None:
    """There unfused attention sets the peak of backward, by the gradient of the mask that it fills in."""
    words = ["training.train_iters=2", "training.steady_window=[1,2]", "recompute=control"]
    config = trial_config(compose(words))
    trial = trials.passed(config)
    for record, predicted in zip(trial.records, predict_memory(read_job(config).job).ranks, strict=True):
        for name in (Stage.FORWARD, Stage.BACKWARD, Stage.GRAD_SYNC, Stage.OPTIMIZER_STEP):
            measured = peak(record.iterations[0], name)
            assert predicted.first[name] == pytest.approx(measured, rel=0.015), (record.rank, name)
