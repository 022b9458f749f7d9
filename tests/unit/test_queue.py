"""What a driver does next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dispatch.queue import Fate, Made, fate_of, held_back, open_slots, startable
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL, Batch, BatchTrial
from orchestrator.vocabulary import Cause, Stage

NONE: frozenset[str] = frozenset()


def batch(*roles: str, parallel: int = 1, attempts: int = 1) -> Batch:
    trials = [
        BatchTrial(
            trial="control" if role != ROLE_TRIAL else f"t{index}",
            name=str(index),
            role=role,
            trainer="mcore_cpu",
            world_size=2,
            config={},
            steady_window=(1, 2),
            train_iters=2,
        )
        for index, role in enumerate(roles)
    ]
    return Batch("b", "s", 0.0, "/r", trials, {"kind": "local"}, parallel_trials=parallel, max_attempts=attempts)


PLAIN = batch(ROLE_CONTROL_FIRST, ROLE_TRIAL, ROLE_TRIAL, ROLE_CONTROL_LAST)


def test_trials_run_in_order_one_at_a_time() -> None:
    assert startable(PLAIN, [], [], NONE) == [0]
    assert startable(PLAIN, [], [0], NONE) == []
    assert startable(PLAIN, [Made(0, Fate.PASSED)], [], NONE) == [1]


def test_a_failed_trial_does_not_stop_the_others() -> None:
    assert open_slots(PLAIN, [Made(0, Fate.PASSED), Made(1, Fate.KEPT)], NONE) == [2, 3]


def test_no_closing_control_behind_one_that_failed() -> None:
    assert open_slots(PLAIN, [Made(0, Fate.KEPT), Made(1, Fate.PASSED), Made(2, Fate.PASSED)], NONE) == []


MISSING = Cause.IMPORT_ERROR


def never(slot: int, cause: Cause = MISSING) -> Made:
    return Made(slot, Fate.NEVER_BEGAN, cause)


def test_nothing_more_runs_where_a_control_and_a_trial_never_began() -> None:
    assert open_slots(PLAIN, [never(0)], NONE) == [1, 2]
    assert open_slots(PLAIN, [never(0), never(1)], NONE) == []
    assert held_back(PLAIN, [never(0), never(1)]) == [2]
    assert held_back(PLAIN, [never(0), never(1)], frozenset({"t2"})) == []


def test_one_that_failed_otherwise_or_got_further_holds_nothing_back() -> None:
    assert open_slots(PLAIN, [never(0), never(1, Cause.INVALID_CONFIG)], NONE) == [2]
    assert open_slots(PLAIN, [never(0), Made(1, Fate.PASSED)], NONE) == [2]
    assert open_slots(PLAIN, [never(0), never(1), Made(0, Fate.PASSED)], NONE) == [2, 3]
    assert open_slots(PLAIN, [Made(0, Fate.KEPT, MISSING), never(1)], NONE) == [2]
    assert open_slots(batch(ROLE_TRIAL, ROLE_TRIAL, ROLE_TRIAL), [never(0), never(1)], NONE) == [2]


def test_a_search_goes_by_its_own_rules() -> None:
    assert open_slots(PLAIN, [never(0), never(1)], NONE, search=True) == [2]
    assert startable(PLAIN, [never(0), never(1)], [], NONE, search=True) == [2]


def test_a_control_holds_back_only_what_is_behind_it() -> None:
    two = batch(ROLE_CONTROL_FIRST, ROLE_TRIAL, ROLE_TRIAL, ROLE_CONTROL_FIRST, ROLE_TRIAL, ROLE_TRIAL)
    made = [never(0), never(1)]
    assert open_slots(two, made, NONE) == [3, 4, 5]
    assert open_slots(two, [*made, Made(3, Fate.PASSED), never(4)], NONE) == [5]


@pytest.mark.parametrize(
    ("cause", "stage", "fate"),
    [
        (Cause.IMPORT_ERROR, Stage.STARTUP, Fate.NEVER_BEGAN),
        (Cause.INVALID_CONFIG, Stage.MODEL_BUILD, Fate.NEVER_BEGAN),
        (Cause.INVALID_CONFIG, Stage.FORWARD, Fate.KEPT),
        (Cause.DEVICE_OOM, Stage.MODEL_BUILD, Fate.KEPT),
        (Cause.UNKNOWN, Stage.STARTUP, Fate.KEPT),
        (Cause.COMMUNICATION, Stage.DISTRIBUTED_INIT, Fate.RETRY),
    ],
)
def test_only_what_trials_may_share_is_a_start_that_failed(cause: Cause, stage: Stage, fate: Fate) -> None:
    assert fate_of(cause, f"failed:{cause}", cut_short=False, stage=stage) is fate


def test_what_says_retry_is_tried_up_to_the_limit() -> None:
    twice = batch(ROLE_TRIAL, attempts=2)
    assert open_slots(twice, [Made(0, Fate.RETRY)], NONE) == [0]
    assert open_slots(twice, [Made(0, Fate.RETRY)] * 2, NONE) == []


def test_an_attempt_cut_short_by_its_job_costs_no_attempt() -> None:
    assert open_slots(batch(ROLE_TRIAL), [Made(0, Fate.CUT_SHORT)] * 5, NONE) == [0]


def test_controls_run_alone_and_ordinary_trials_side_by_side() -> None:
    four = batch(ROLE_CONTROL_FIRST, ROLE_TRIAL, ROLE_TRIAL, ROLE_TRIAL, ROLE_CONTROL_LAST, parallel=2)
    assert startable(four, [], [], NONE) == [0]
    opened = [Made(0, Fate.PASSED)]
    assert startable(four, opened, [], NONE) == [1, 2]
    assert startable(four, [*opened, Made(1, Fate.PASSED)], [2], NONE) == [3]
    assert startable(four, [*opened, Made(1, Fate.PASSED), Made(2, Fate.PASSED)], [3], NONE) == []


def test_a_cancelled_trial_is_not_started() -> None:
    assert open_slots(PLAIN, [Made(0, Fate.PASSED)], frozenset({"t1"})) == [2, 3]


def test_what_follows_from_an_outcome() -> None:
    assert fate_of(Cause.NONE, "pass", cut_short=False) is Fate.PASSED
    assert fate_of(Cause.DEVICE_OOM, "OOM-fwd", cut_short=False) is Fate.KEPT
    assert fate_of(Cause.NODE_FAILURE, "failed:node_failure", cut_short=False) is Fate.RETRY
    assert fate_of(Cause.IMPORT_ERROR, "failed:import_error", cut_short=False) is Fate.KEPT
    assert fate_of(Cause.NONE, None, cut_short=True) is Fate.CUT_SHORT
    assert fate_of(Cause.PREEMPTED, "failed:preempted", cut_short=True) is Fate.CUT_SHORT


def test_a_result_that_was_there_when_the_job_ended_is_kept() -> None:
    assert fate_of(Cause.NONE, "pass", cut_short=True) is Fate.PASSED
    assert fate_of(Cause.DEVICE_OOM, "OOM-bwd", cut_short=True) is Fate.KEPT


@given(
    st.lists(st.sampled_from([ROLE_CONTROL_FIRST, ROLE_TRIAL, ROLE_CONTROL_LAST]), max_size=8),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.sampled_from([Fate.PASSED, Fate.KEPT, Fate.NEVER_BEGAN, Fate.RETRY]), min_size=40, max_size=40),
)
def test_a_driver_always_comes_to_an_end(roles: list[str], parallel: int, attempts: int, fates: list[Fate]) -> None:
    asked = batch(*roles, parallel=parallel, attempts=attempts)
    made: list[Made] = []
    running: list[int] = []
    started = 0
    while open_slots(asked, made, NONE):
        chosen = startable(asked, made, running, NONE)
        assert chosen or running, "nothing runs and nothing may start, yet something is open"
        started += len(chosen)
        running += chosen
        made.append(Made(running.pop(0), fates[len(made) % len(fates)]))
    assert started <= len(roles) * attempts
