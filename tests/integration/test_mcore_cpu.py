"""Trainer mcore_cpu: the real Megatron Core, its losses, what each label saves, and where it replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("megatron.core", reason="the cpu extra is not installed")

from mcore_arithmetic import Spread, gated, replays, saved
from mcore_ranks import Ranks, Trial, entries, held_after_forward, peak, warm_ranks
from mcore_settings import CONTROL, EVERY_RECOMPUTE, GROUPED, LABELS, LAYOUTS, config, modules
from older_megatron import OLDER, older_release

# One warm process for all of them, so they stay with one worker.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.xdist_group("mcore_cpu")]


@dataclass
class Controls:
    """Trials, and the control of each set of overrides, which is run once."""

    ranks: Ranks
    known: dict[tuple[str, ...], Trial] = field(default_factory=dict)

    def of(self, overrides: Sequence[str]) -> Trial:
        key = tuple(overrides)
        if key not in self.known:
            self.known[key] = self.ranks.passed(config(*key, CONTROL))
        return self.known[key]

    def trial(self, overrides: Sequence[str], *recompute: str) -> Trial:
        return self.ranks.passed(config(*overrides, *recompute))


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controls]:
    with warm_ranks(tmp_path_factory.mktemp("ranks")) as ranks:
        yield Controls(ranks)


@pytest.fixture(scope="module")
def older_core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controls]:
    with warm_ranks(tmp_path_factory.mktemp("older"), older_release()) as ranks:
        yield Controls(ranks)


# What a label saves: bytes held after a forward, against the tensors that it need not keep.

SEQUENCE, BATCH = 128, 2
TOKENS = SEQUENCE * BATCH
HIDDEN, HEADS, LAYERS = 128, 4, 4
ROUTED = 2 * TOKENS  # each token goes to two experts
FLOAT = 4
SIZES = (f"training.seq_length={SEQUENCE}", f"training.micro_batch_size={BATCH}", "parallelism=single")

SCORES = BATCH * HEADS * SEQUENCE * SEQUENCE
NORM = 2 * TOKENS * HIDDEN + TOKENS  # the result, what it scales, and one factor for each token
EXPERTS = ROUTED * HIDDEN + gated(ROUTED, 128) + ROUTED * 128  # tokens sorted by expert; weighting keeps one more
# Grouped-query attention expands keys and values before it; a checkpoint keeps the narrow ones, and with the value all
# of the projection that the value is a part of. Heads are 32 wide, two groups.
GROUPS = 2 * TOKENS * HEADS * 32 - TOKENS * 2 * 32 - TOKENS * (HEADS + 2 * 2) * 32

SAVED = [
    pytest.param((), "core_attn", LAYERS * SCORES, LAYERS, id="core_attn"),
    pytest.param((), "layernorm", 2 * LAYERS * NORM, 2 * LAYERS, id="layernorm"),
    pytest.param((), "moe,shared_experts", 3 * (gated(TOKENS, 256) + EXPERTS), 6, id="shared_experts-inside-moe-once"),
    pytest.param(("model=tiny_dense",), "core_attn", LAYERS * (SCORES + GROUPS), LAYERS, id="core_attn-gqa"),
    pytest.param(("model=tiny_moe",), "mlp", 0, 0, id="mlp-never-on-experts"),
]


@pytest.mark.parametrize(("model", "labels", "elements", "visits"), SAVED)
def test_a_label_saves_what_its_tensors_hold_and_replays_where_it_acts(
    core: Controls, model: tuple[str, ...], labels: str, elements: int, visits: int
) -> None:
    overrides = (*SIZES, *model)
    control, trial = core.of(overrides), core.trial(overrides, f"recompute_modules=[{labels}]")
    less = held_after_forward(control) - held_after_forward(trial)
    assert less == pytest.approx(FLOAT * elements, rel=0.02)
    microbatches = trial.spec.config["training"]["global_batch_size"] // BATCH
    assert entries(trial.records[0], "replay") == visits * microbatches * trial.spec.train_iters
    assert trial.losses == pytest.approx(control.losses, rel=1e-5)


def test_with_sequence_parallelism_a_rank_saves_its_share_of_the_norms(core: Controls) -> None:
    overrides = (*SIZES, *LAYOUTS["tp2"], "model=tiny_dense")
    control, trial = core.of(overrides), core.trial(overrides, "recompute_modules=[layernorm]")
    for rank in (0, 1):
        less = held_after_forward(control, rank) - held_after_forward(trial, rank)
        assert less == pytest.approx(FLOAT * 2 * LAYERS * NORM / 2, rel=0.02)


def test_peaks_repeat(core: Controls) -> None:
    """Up to what gloo's threads still hold of a message when the next one begins: a few kB of 20 MB."""
    overrides = LAYOUTS["ep2"]
    first, again = core.of(overrides), core.trial(overrides, "recompute=control")
    for one, other in zip(first.records, again.records, strict=True):
        for name in ("forward", "backward", "optimizer_step"):
            assert peak(one, name) == pytest.approx(peak(other, name), rel=1e-3)


# Losses, replays and savings, over layouts.

COVERING = [
    ("pp2", [modules(["core_attn"]), modules(["layernorm", "mla_up_proj"])]),
    ("pp2-vpp2", ["recompute=full_block", "recompute=full_uniform", modules(["mlp", "shared_experts"])]),
    ("ep2", [modules(["moe_act"]), modules(["moe", "shared_experts"])]),
    ("dp2-overlap", [modules(["mla_up_proj"]), modules(["core_attn", "moe"])]),
    ("tp2", [modules(["layernorm", "moe_act"]), modules(["mlp", "moe"])]),
    ("tp2-ep2-etp1", [modules(["shared_experts"]), modules(["core_attn", "moe_act"])]),
    ("pp2-ep2", [modules(LABELS)]),
    ("tp2-pp2-ep2", [modules(["layernorm", "mla_up_proj", "moe"])]),
]


def core_version(trial: Trial) -> str:
    return str(trial.records[0].software["megatron_core"]["version"])


def check(core: Controls, layout: str, recompute: str) -> None:
    """The losses of a trial are its control's, and each pipeline stage replays and saves what the arithmetic says."""
    overrides = (*LAYOUTS[layout], GROUPED)
    control, trial = core.of(overrides), core.trial(overrides, recompute)
    assert len(control.losses) == 2
    assert trial.losses == pytest.approx(control.losses, rel=1e-5)
    assert all(record.measured and record.optimizer_state for record in trial.records)
    asked = trial.spec.config
    spread = Spread.of(asked)
    for stage in range(spread.pp):
        ranks = spread.ranks_of(stage)
        for rank in ranks:
            assert entries(trial.records[rank], "replay") == replays(asked, stage) * trial.spec.train_iters
        less = sum(held_after_forward(control, rank) - held_after_forward(trial, rank) for rank in ranks)
        assert less == pytest.approx(saved(asked, stage, core_version(trial)), rel=0.02)


@pytest.mark.parametrize(("layout", "recompute"), [(layout, item) for layout, items in COVERING for item in items])
def test_recompute_changes_no_loss_and_saves_what_its_tensors_hold(core: Controls, layout: str, recompute: str) -> None:
    check(core, layout, recompute)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", EVERY_RECOMPUTE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_recompute_keeps_its_word_anywhere(core: Controls, layout: str, recompute: str) -> None:
    check(core, layout, recompute)


PP2, TP2 = LAYOUTS["pp2"], LAYOUTS["tp2"]
DENSE = "model=tiny_dense"
VARIANTS: dict[str, tuple[tuple[str, ...], str]] = {
    "bf16-with-fp32-masters": ((*PP2, GROUPED, "precision=bf16"), modules(["layernorm", "mla_up_proj", "moe_act"])),
    "low-rank-queries": ((*PP2, GROUPED, "model.q_lora_rank=24"), modules(["mla_up_proj"])),
    "tied-embeddings": ((*PP2, GROUPED, "model.share_embeddings_and_output_weights=true"), modules(["moe"])),
    "multi-token-prediction": ((*PP2, GROUPED, "model.mtp_num_layers=1"), "recompute=full_uniform"),
    "multi-token-prediction-with-labels": ((*PP2, GROUPED, "model.mtp_num_layers=1"), modules(LABELS)),
    "multi-token-prediction-on-a-stage-of-its-own": (
        (*PP2, GROUPED, "model.mtp_num_layers=1", "parallelism.layout=Etttt|mL"),
        modules(["moe", "mla_up_proj"]),
    ),
    "dropout": (
        (*PP2, GROUPED, "model.attention_dropout=0.1", "model.hidden_dropout=0.1"),
        modules(["core_attn", "mlp", "moe"]),
    ),
    "plain-optimizer": ((*PP2, GROUPED, "trainer.use_distributed_optimizer=false"), modules(["shared_experts"])),
    "null-is-core_attn": ((*PP2, GROUPED), "recompute=selective"),
    "grouped-queries-with-sequence-parallelism": ((*TP2, DENSE), modules(["core_attn", "layernorm", "mlp"])),
    "tensor-parallelism-without-sequence-parallelism": (
        (*TP2, "parallelism.sequence_parallel=false", DENSE),
        modules(["core_attn", "layernorm", "mlp"]),
    ),
    "experts-shared-by-two-ranks": (
        ("parallelism=single", "parallelism.world_size=2", "parallelism.etp=2", GROUPED),
        modules(["moe_act", "shared_experts"]),
    ),
    "interleaved-with-overlap": (
        (*LAYOUTS["dp2-overlap"], "parallelism.pp=2", "parallelism.vpp=2", "parallelism.world_size=4", GROUPED),
        "recompute=full_block",
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_the_model_train_alike_with_recompute(core: Controls, name: str) -> None:
    overrides, recompute = VARIANTS[name]
    control, trial = core.of(overrides), core.trial(overrides, recompute)
    assert trial.losses == pytest.approx(control.losses, rel=1e-5)
    assert all(entries(record, "replay") for record in trial.records)


def test_without_recompute_nothing_is_replayed(core: Controls) -> None:
    control, off = core.of((*PP2, GROUPED)), core.trial((*PP2, GROUPED), "recompute=off")
    assert off.losses == control.losses
    assert not any(entries(record, "replay") for record in (*control.records, *off.records))


@pytest.mark.parametrize("layout", ["pp2", "tp2"])
def test_the_older_megatron_core_trains_alike_with_every_label(older_core: Controls, layout: str) -> None:
    control = older_core.of((*LAYOUTS[layout], GROUPED))
    assert core_version(control).startswith(OLDER)
    check(older_core, layout, modules(LABELS))


# A capacity.

LADDER = ("model=tiny_ladder", "training=ladder", "parallelism=two_stages")


def ladder(core: Controls, *overrides: str) -> Trial:
    # The window is left as it is: these trials end long before, or are not asked for their peaks.
    return core.ranks.run(config(*LADDER, "training.seq_length=32", "training.global_batch_size=2", *overrides))


@pytest.mark.parametrize(
    ("limit_gb", "label", "at", "ranks", "iteration"),
    [
        (0.060, "OOM-setup", "data_build", {0, 1}, 0),
        (0.0692, "OOM-fwd", "forward", {1}, 0),
        (0.071, "OOM-bwd", "backward", {1}, 0),
        (0.0745, "OOM-optimizer", "optimizer_step", {0, 1}, 0),
    ],
)
def test_a_capacity_stops_the_stage_that_crosses_it(
    core: Controls, limit_gb: float, label: str, at: str, ranks: set[int], iteration: int
) -> None:
    outcome = ladder(core, f"trainer.memory_limit_gb={limit_gb}").outcome()
    assert (outcome.label, outcome.stage.value, outcome.iteration) == (label, at, iteration)
    assert outcome.rank in ranks
    assert set(outcome.also_ranks) <= ranks


def test_above_every_peak_it_passes(core: Controls) -> None:
    trial = ladder(core, "trainer.memory_limit_gb=0.078", "training.steady_window=[2,2]")
    assert trial.outcome().label == "pass"
    peaks = [
        max(peak(record.iterations[0], name) for record in trial.records)
        for name in ("forward", "backward", "optimizer_step")
    ]
    setup = max(peak(record, "data_build") for record in trial.records)
    assert [setup, *peaks] == sorted([setup, *peaks])


WALL: tuple[str, ...] = (
    "model=tiny_dense",
    "model.ffn_hidden_size=4096",
    "parallelism=two_stages",
    "training.seq_length=128",
    "trainer.memory_limit_gb=0.057",
)


def test_recompute_moves_the_wall_from_forward_to_the_optimizer(core: Controls) -> None:
    without = core.ranks.run(config(*WALL, "recompute=control")).outcome()
    full = core.ranks.run(config(*WALL, "recompute=full_uniform")).outcome()
    assert (without.label, full.label) == ("OOM-fwd", "OOM-optimizer")


# What is recorded besides.


def test_a_record_says_what_was_built_and_on_what(core: Controls) -> None:
    record = core.of(LAYOUTS["pp2"]).records[0]
    assert record.device is not None
    assert record.device.kind == "cpu"
    assert record.effective is not None
    model: dict[str, Any] = record.effective["model"]
    built = [(layer["count"], layer["core_attention"], layer["mlp"]) for layer in record.effective["layers"]]
    assert built == [(1, "PlainAttention", "MLP"), (1, "PlainAttention", "MoELayer")]
    assert (model["recompute_granularity"], model["recompute_modules"]) == ("selective", [])
    assert record.software["torch"]["version"]
    assert Path(record.software["megatron_core"]["path"]).is_dir()
    names = {item.stage.value for item in record.stages}
    assert names >= {
        "startup",
        "distributed_init",
        "model_build",
        "optimizer_build",
        "data_build",
        "forward",
        "backward",
        "grad_sync",
        "optimizer_init",
        "optimizer_step",
        "between_steps",
        "teardown",
    }
