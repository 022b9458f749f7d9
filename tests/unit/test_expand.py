"""Fast expansion gives what Hydra's own composition gives, whatever is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.config.compose import Composer, composing
from orchestrator.config.errors import UsageError
from orchestrator.config.multirun import expand

GROUP_CHOICES = [
    "model=tiny_moe",
    "model=tiny_dense",
    "parallelism=two_experts",
    "precision=bf16",
    "recompute=full_block",
    "recompute=off",
    "recompute@_global_=selective",
    "trainer=bridge",
    "training=guide",
    "cluster=slurm",
    "study=demo",
    "model=no_such",
]
VALUES = [
    "recompute_modules=[]",
    "recompute_modules=[core_attn,mlp]",
    "recompute_modules=null",
    "recompute_modules='[mlp]'",
    "recompute_num_layers=2",
    "recompute_granularity=full",
    "model.num_layers=8",
    "model.num_layers=eight",
    "model.kv_channels=64",
    "model.layernorm_epsilon=1e-6",
    "model.moe_layer_freq=[0,0,1,1]",
    "+model.qk_layernorm=false",
    "++model.qk_layernorm=false",
    "~model.vocab_size",
    "parallelism.tp=2",
    "parallelism.layout='Ett|ttL'",
    "parallelism.layout=[[embedding,decoder],[decoder,loss]]",
    "training.steady_window=[1,2]",
    "training.global_batch_size=${training.micro_batch_size}",
    "trainer.memory_limit_gb=1",
    "trainer.memory_limit_gb=0.5",
    "trainer.time_limit=1:30:00",
    "trainer.environment.NCCL_DEBUG=INFO",
    "trainer.environment={A:b}",
    "trainer.environment.A.B=c",
    "cluster.environment.A=1",
    "cluster.gpu_type=h100",
    "cluster.sbatch.comment='two words'",
    "revisions.megatron_core=12e4567",
    "study.name=another",
    "study.target_gb=40",
    "results_dir=elsewhere",
    "store.url=null",
    "strict=true",
    "no_such=1",
    "model.no_such=1",
    "model.name=${oc.env:HOME}",
    "model.name=???",
]


class HydraComposer(Composer):
    """Hydra's own composition, every time."""

    def raw(self, overrides: Sequence[str]) -> dict[str, Any]:
        return self.composed_by_hydra(overrides)


@pytest.fixture(scope="module")
def composers() -> Iterator[tuple[Composer, Composer]]:
    with composing() as composer:
        yield HydraComposer(composer.hydra, composer.config_name, composer.folders), composer


def answer(composer: Composer, overrides: list[str]) -> Any:
    try:
        return composer.compose(overrides)
    except UsageError:
        return "refused"


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    choices=st.lists(
        st.sampled_from(GROUP_CHOICES), max_size=2, unique_by=lambda word: word.split("=")[0].split("@")[0]
    ),
    values=st.lists(st.sampled_from(VALUES), max_size=4),
    values_first=st.booleans(),
)
def test_random_overrides_compose_as_hydra_composes_them(
    composers: tuple[Composer, Composer], choices: list[str], values: list[str], values_first: bool
) -> None:
    overrides = values + choices if values_first else choices + values
    slow, fast = composers
    assert answer(fast, overrides) == answer(slow, overrides)


AXES = st.lists(
    st.sampled_from(
        [
            "recompute_modules=[],[core_attn],[mlp]",
            "recompute_num_layers=1,null",
            "parallelism=two_stages,two_experts",
            "training.micro_batch_size=1,2",
            "precision=fp32,bf16",
            "model=glob(tiny_m*)",
            "training.seed=range(1,4)",
            "model.num_layers=choice(2,4)",
            'study.candidates=[[recompute=control],["recompute_modules=[mlp]"]]',
            "trainer.environment.A=choice(a,b)",
        ]
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda word: word.split("=")[0],
)


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(axes=AXES)
def test_random_grids_expand_as_with_hydra(composers: tuple[Composer, Composer], axes: list[str]) -> None:
    slow, fast = composers

    def expanded(composer: Composer) -> Any:
        try:
            return expand(axes, composer, multirun=True)
        except UsageError:
            return "refused"

    assert expanded(fast) == expanded(slow)


def test_a_grid_over_values_composes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = Composer._composed

    def counted(self: Composer, overrides: Any, with_hydra: bool) -> Any:
        asked.append(tuple(overrides))
        return original(self, overrides, with_hydra)

    monkeypatch.setattr(Composer, "_composed", counted)
    with composing() as composer:
        words = ["parallelism=two_stages,two_experts", "training.seed=range(0,20)", "recompute_modules=[],[mlp],[moe]"]
        grid = expand(words, composer, multirun=True)
    assert len(grid) == 120
    assert len({word for words in asked for word in words if word.startswith("parallelism")}) == 2
    assert len(asked) <= 5


def test_interpolations_of_a_users_file_are_resolved_for_every_candidate(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "linked.yaml").write_text(
        "seq_length: 64\nmicro_batch_size: 2\nglobal_batch_size: ${training.micro_batch_size}\ntrain_iters: 6\n"
        "steady_window: [4, '${..train_iters}']\nseed: 1\n"
    )
    with composing(str(tmp_path)) as composer:
        hydra = HydraComposer(composer.hydra, composer.config_name, composer.folders)
        for words in (
            ["training=linked", "training.micro_batch_size=8"],
            ["training=linked", "training.micro_batch_size=4", "training.train_iters=9"],
            ["training=linked", "training.global_batch_size=4"],
        ):
            request = composer.compose(words)
            assert request == hydra.compose(words)
        assert composer.compose(["training=linked", "training.micro_batch_size=8"])["training"] == {
            "seq_length": 64,
            "micro_batch_size": 8,
            "global_batch_size": 8,
            "train_iters": 6,
            "steady_window": [4, 6],
            "seed": 1,
        }


def test_candidates_share_the_groups_in_which_they_do_not_differ(composers: tuple[Composer, Composer]) -> None:
    _, fast = composers
    first, second = fast.compose(["training.seed=1"]), fast.compose(["training.seed=2", "recompute_modules=[mlp]"])
    assert first["model"] is second["model"]
    assert first["training"] != second["training"]
    assert fast.compose(["training.seed=1"]) == first


def test_finishing_a_request_changes_nothing_that_others_share(composers: tuple[Composer, Composer]) -> None:
    _, fast = composers
    assert fast.compose(["trainer.time_limit=90m"])["trainer"]["time_limit"] == 5400.0
    assert fast.compose(["trainer.time_limit=90m", "training.seed=3"])["trainer"]["time_limit"] == 5400.0
    assert fast.compose(["training.seed=3"])["trainer"]["time_limit"] is None
