"""Faults committed in every stage that trainer mcore_cpu enters: the label and the rank that come of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("megatron.core", reason="the cpu extra is not installed")

from mcore_ranks import Ranks, Trial, warm_ranks
from mcore_settings import LAYOUTS, config

# One warm process for all of them, so they stay with one worker.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.xdist_group("mcore_cpu_faults")]

RANK = 1
"""The rank that commits the fault: not the one that everybody would name anyway."""

SETUP = ("startup", "distributed_init", "model_build", "optimizer_build", "data_build")
STEP = ("forward", "backward", "replay", "grad_sync", "optimizer_step", "between_steps")
"""Entered in every iteration; `optimizer_init` only in the first."""
ECONOMICAL = frozenset({"model_build", "forward", "backward", "replay", "grad_sync", "optimizer_init"})


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with warm_ranks(tmp_path_factory.mktemp("faults")) as warm:
        yield warm


def faulty(
    ranks: Ranks,
    stage: str,
    kind: str,
    *overrides: str,
    seconds: float = 60.0,
    still: float | None = None,
    **details: int,
) -> Trial:
    iteration = 0 if stage in SETUP else 1 if stage == "optimizer_init" else 2
    fault = {"stage": stage, "kind": kind, "rank": RANK, "iteration": iteration, **details}
    written = ",".join(f"{name}:{value}" for name, value in fault.items())
    return ranks.run(
        config(
            *LAYOUTS["pp2"],
            "recompute_modules=[moe]",
            "training.train_iters=3",
            "training.steady_window=[3,3]",
            f"trainer.fault={{{written}}}",
            *overrides,
        ),
        seconds,
        still,
    )


def stages(*names: str, quick: frozenset[str] = ECONOMICAL) -> list[object]:
    """Stages as parameters; what a quick run leaves out is marked."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


LABELS = {
    **dict.fromkeys(SETUP, "OOM-setup"),
    "forward": "OOM-fwd",
    "backward": "OOM-bwd",
    "replay": "OOM-bwd",
    "grad_sync": "OOM-grad-sync",
    "optimizer_init": "OOM-optimizer",
    "optimizer_step": "OOM-optimizer",
    "between_steps": "OOM-unknown",
}


@pytest.mark.parametrize("stage", stages(*LABELS))
def test_out_of_memory_is_put_to_the_stage_and_the_rank_that_it_happened_in(ranks: Ranks, stage: str) -> None:
    outcome = faulty(ranks, stage, "oom").outcome()
    completed = 0 if stage in SETUP or stage == "optimizer_init" else 1
    assert (outcome.label, outcome.stage.value, outcome.rank) == (LABELS[stage], stage, RANK)
    assert outcome.also_ranks == ()
    assert outcome.iteration == completed


ALLOCATING = tuple(stage for stage in LABELS if stage not in ("startup", "distributed_init"))
"""Nothing is allocated before the model is built."""


@pytest.mark.parametrize("stage", stages(*ALLOCATING, quick=frozenset({"replay", "optimizer_step"})))
def test_a_chosen_allocation_within_a_stage_can_be_the_one_that_fails(ranks: Ranks, stage: str) -> None:
    # Some stages do little more than one.
    trial = faulty(ranks, stage, "oom", allocation=1 if stage in ("data_build", "grad_sync", "between_steps") else 3)
    outcome = trial.outcome()
    assert (outcome.label, outcome.stage.value, outcome.rank) == (LABELS[stage], stage, RANK)
    record = trial.records[RANK]
    assert record.exception is not None
    assert record.exception.type == "torch.OutOfMemoryError"
    assert record.allocator_ooms == 1


@pytest.mark.parametrize("stage", stages("forward", "backward", "replay", "grad_sync", quick=frozenset({"backward"})))
def test_a_gradient_that_is_nan_before_it_is_reduced_ends_the_trial(ranks: Ranks, stage: str) -> None:
    outcome = faulty(ranks, stage, "not_finite").outcome()
    assert (outcome.label, outcome.rank, outcome.stage.value) == ("failed:non_finite", RANK, "grad_sync")


@pytest.mark.parametrize(
    "stage",
    stages("optimizer_step", "optimizer_init", "forward", "backward", "replay", quick=frozenset({"optimizer_step"})),
)
def test_a_nan_that_nobody_checks_for_is_seen_in_the_numbers_of_all_ranks(ranks: Ranks, stage: str) -> None:
    trial = faulty(ranks, stage, "not_finite", "trainer.check_for_nan_in_grad=false")
    # `optimizer_init` is in the first step, and behind its norm.
    assert [row.nan for row in trial.records[RANK].iterations] == [False, True, True]
    assert (trial.outcome().label, trial.outcome().rank) == ("failed:non_finite", None)


@pytest.mark.parametrize(
    "stage", stages(*SETUP, *STEP, "optimizer_init", quick=frozenset({"model_build", "forward", "replay"}))
)
def test_a_rank_that_sleeps_is_the_one_that_hangs_and_not_the_one_that_waits(ranks: Ranks, stage: str) -> None:
    # Whoever sleeps before the ranks have met is found by the clock: the others are still importing, perhaps.
    trial = faulty(ranks, stage, "sleep", seconds=20.0 if stage == "startup" else 60.0, still=3.0)
    outcome = trial.outcome()
    assert (outcome.label, outcome.rank, outcome.stage.value) == ("failed:hang", RANK, stage)
    assert outcome.also_ranks == ()


@pytest.mark.parametrize(
    "stage", stages(*SETUP, *STEP, "optimizer_init", quick=frozenset({"startup", "replay", "optimizer_step"}))
)
@pytest.mark.parametrize("kind", ["kill", pytest.param("segfault", marks=pytest.mark.slow)])
def test_a_rank_that_dies_without_a_word_leaves_its_stage(ranks: Ranks, stage: str, kind: str) -> None:
    trial = faulty(ranks, stage, kind)
    outcome = trial.outcome()
    assert (outcome.label, outcome.rank, outcome.stage.value) == ("failed:crash", RANK, stage)


def test_a_failure_after_the_window_spoils_nothing(ranks: Ranks) -> None:
    trial = faulty(ranks, "teardown", "raise")
    assert trial.outcome().label == "pass"
    assert trial.outcome().notes


def test_an_exit_in_the_middle_is_no_pass(ranks: Ranks) -> None:
    outcome = faulty(ranks, "between_steps", "exit").outcome()
    assert outcome.label is not None
    assert outcome.label.startswith("failed:")
    assert outcome.rank == RANK
