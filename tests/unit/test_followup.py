"""What a job leaves to the next one, and which trials still fit into its time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dispatch.followup import Left, follow_up, hopeless, regrouped
from orchestrator.dispatch.queue import Fate, Made, open_slots
from orchestrator.dispatch.timelimit import fits, needed_seconds
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL, Batch, BatchTrial


def batch(*listed: tuple[str, str]) -> Batch:
    trials = [BatchTrial(name, name, role, "mcore_cpu", 2, {}, (1, 2), 2) for name, role in listed]
    return Batch("b", "s", 0.0, "/r", trials, {"kind": "slurm"})


TWO_KEYS = batch(
    ("c1", ROLE_CONTROL_FIRST), ("a", ROLE_TRIAL), ("b", ROLE_TRIAL), ("c2", ROLE_CONTROL_FIRST), ("d", ROLE_TRIAL)
)


def names(made: Batch | None) -> list[tuple[str, str]]:
    assert made is not None
    return [(trial.name, trial.role) for trial in made.trials]


def test_what_is_left_runs_behind_its_own_keys_control() -> None:
    assert names(follow_up(TWO_KEYS, Left([4]), 9.0)) == [("c2", ROLE_CONTROL_FIRST), ("d", ROLE_TRIAL)]
    assert names(follow_up(TWO_KEYS, Left([2, 4]), 9.0)) == [
        ("c1", ROLE_CONTROL_FIRST),
        ("b", ROLE_TRIAL),
        ("c2", ROLE_CONTROL_FIRST),
        ("d", ROLE_TRIAL),
    ]


def test_a_closing_control_alone_is_no_reason_for_a_job() -> None:
    closed = batch(("c", ROLE_CONTROL_FIRST), ("a", ROLE_TRIAL), ("c", ROLE_CONTROL_LAST))
    assert follow_up(closed, Left([2]), 9.0) is None
    assert follow_up(closed, Left([]), 9.0) is None


def test_handing_over_twice_hands_over_the_same_batch() -> None:
    first, second = follow_up(TWO_KEYS, Left([1]), 9.0), follow_up(TWO_KEYS, Left([1]), 10.0)
    assert first is not None
    assert second is not None
    assert first.batch == second.batch != TWO_KEYS.batch


def test_attempts_on_bad_nodes_count_in_the_next_job_too_and_those_nodes_are_left_out() -> None:
    """Else a trial that fails on every node would be handed from job to job for ever."""
    first = follow_up(replace(TWO_KEYS, max_attempts=3), Left([1], {1: 1}, bad_nodes={"node1"}), 9.0)
    assert first is not None
    assert open_slots(first, [Made(1, Fate.RETRY)]) == [0, 1]
    assert open_slots(first, [Made(1, Fate.RETRY)] * 2) == [0]
    second = follow_up(first, Left([1], {1: 1}, bad_nodes={"node2"}), 10.0)
    assert second is not None
    assert (second.spent, second.avoid) == ({"a": 2}, ["node1", "node2"])


def test_a_trial_that_two_jobs_could_not_finish_is_left_to_the_user() -> None:
    first = follow_up(TWO_KEYS, Left([1, 2], cut_short=[1]), 9.0)
    assert names(first) == [("c1", ROLE_CONTROL_FIRST), ("a", ROLE_TRIAL), ("b", ROLE_TRIAL)]
    assert first is not None
    again = Left([1, 2], cut_short=[1])
    assert hopeless(first, again) == ["a"]
    assert names(follow_up(first, again, 10.0)) == [("c1", ROLE_CONTROL_FIRST), ("b", ROLE_TRIAL)]
    assert follow_up(first, Left([1], cut_short=[1]), 10.0) is None


def test_many_that_are_left_are_closed_by_their_control_too() -> None:
    many = batch(("c", ROLE_CONTROL_FIRST), *((name, ROLE_TRIAL) for name in "abcde"))
    assert names(follow_up(many, Left([1, 2, 3, 4]), 9.0))[-1] == ("c", ROLE_CONTROL_LAST)


@given(st.sets(st.integers(0, 4)))
def test_every_trial_that_is_left_is_in_the_next_job_once(left: set[int]) -> None:
    listed = [trial.name for trial in regrouped(TWO_KEYS, left) if trial.role == ROLE_TRIAL]
    assert listed == [TWO_KEYS.trials[slot].name for slot in sorted(left) if TWO_KEYS.trials[slot].role == ROLE_TRIAL]


def test_no_trial_is_started_that_cannot_finish() -> None:
    assert fits(None, [1000.0], None, 100.0), "no limit"
    assert fits(300.0, [], None, 100.0), "nothing is known yet: only running it can tell"
    assert not fits(90.0, [], None, 100.0)
    assert fits(300.0, [160.0], None, 100.0)
    assert not fits(299.0, [160.0], None, 100.0)


def test_a_trials_own_limit_bounds_what_it_may_take() -> None:
    assert needed_seconds([], 60.0) == 60.0
    assert needed_seconds([400.0], 60.0) == 60.0
    assert needed_seconds([40.0], 600.0) == 50.0
