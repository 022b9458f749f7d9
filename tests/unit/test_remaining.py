from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import recorded
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dispatch.journal import ENDED, STARTED, Event
from orchestrator.dispatch.liveness import RUNNING, CurrentTrial, DriverState
from orchestrator.records import layout
from orchestrator.records.beacon import BeaconWriter
from orchestrator.report.remaining import duration, left_text, remaining
from orchestrator.report.watch import watch_lines
from orchestrator.store.hours import StudyHours
from orchestrator.store.overview import StudyProgress, WaitingTrial
from orchestrator.vocabulary import Stage

NOW = 10_000.0


def batch(count: int = 4, trainer: str = "bridge", **changes):
    trials = [replace(recorded.batch_trial(f"t{number}", [], world_size=8), trainer=trainer) for number in range(count)]
    return replace(recorded.batch(Path("/r"), trials), **changes)


def state(done: int, total: int = 4, current: tuple[CurrentTrial, ...] = ()) -> DriverState:
    return DriverState("b1", 1, 1, "host", 0.0, NOW, RUNNING, done, total, current=list(current))


def current(since: float, **changes) -> CurrentTrial:
    made = CurrentTrial("t1", "001", "[moe]", "trial", since, "", "", stage="backward", iteration=3)
    return replace(made, **changes)


def ended(seconds: float) -> Event:
    return Event(NOW, ENDED, "t0", "001", "[]", "trial", seconds=seconds, label="pass")


def test_what_is_left_is_reckoned_at_the_mean_of_what_has_ended():
    started = Event(NOW, STARTED, "t1", "001", "x", "trial")
    left = remaining(batch(), state(2), [ended(100.0), started, ended(200.0)], NOW)
    assert (left.runs, left.seconds) == (2, 300.0)
    assert left.gpu_hours == pytest.approx(300.0 * 8 / 3600)
    assert left_text(left) == "about 5 min and 0.67 GPU-hours left"


def test_what_a_driver_holds_back_is_not_left():
    held = replace(state(2), held_back=["t3"])
    assert remaining(batch(), held, [ended(100.0)], NOW).runs == 1
    waits = WaitingTrial("s", "[moe]", "t3", "pending")
    lines = watch_lines([], [held], [waits], NOW, held={"t3"})
    assert any(line.startswith("held back  1 was not started") and line.endswith(": [moe]") for line in lines)
    assert not any(line.startswith("pending") for line in lines)


def test_a_run_that_goes_on_counts_with_what_it_has_left_and_never_below_nothing():
    left = remaining(batch(), state(2, current=(current(NOW - 60.0),)), [ended(100.0)], NOW)
    assert left.seconds == 140.0
    late = remaining(batch(), state(3, current=(current(NOW - 900.0),)), [ended(100.0)], NOW)
    assert late.seconds == 0.0


def test_trials_at_the_same_time_share_the_time_and_not_the_gpu_hours():
    one = remaining(batch(), state(0), [ended(100.0)], NOW)
    two = remaining(batch(parallel_trials=2), state(0), [ended(100.0)], NOW)
    assert two.seconds == one.seconds / 2
    assert two.gpu_hours == one.gpu_hours


def test_a_batch_without_an_ended_run_goes_by_the_studys_earlier_ones_or_says_that_none_can_tell():
    assert remaining(batch(), state(0), [], NOW, earlier=[50.0]).seconds == 200.0
    left = remaining(batch(), state(0), [], NOW)
    assert left_text(left) == "4 runs left; none has ended yet to tell the time"


def test_processors_have_no_gpu_hours():
    left = remaining(batch(trainer="mcore_cpu"), state(3), [ended(40.0)], NOW)
    assert left_text(left) == "about 40 s left"


@given(st.floats(0.0, 1e6))
def test_a_duration_is_short(seconds):
    assert len(duration(seconds)) <= 8


def test_the_screen_has_the_stage_now_and_the_time_and_gpu_hours_left(tmp_path):
    beacons = tmp_path / "beacons"
    layout.make_private_dir(beacons)
    driver = state(2, current=(current(NOW - 20.0, beacon_dir=str(beacons)),))
    left = remaining(batch(), driver, [ended(100.0)], NOW)
    studies = [StudyProgress("demo", 0.0, 4, {"ended": 2, "running": 1}, {"pass": 2})]

    def screen() -> list[str]:
        hours = [StudyHours("demo", 0.5)]
        return watch_lines(studies, [driver], [], NOW, left={"b1": left}, hours=hours, allowed={"demo": 2.0})

    assert "  [moe]: backward iteration 3, 20 s" in screen(), "as the driver said"
    beacon = BeaconWriter(layout.beacon_file(beacons, 0), 10)
    beacon.at(Stage.OPTIMIZER_STEP, 7, 0)
    try:
        assert "  [moe]: optimizer_step iteration 7, 20 s" in screen(), "as the beacon says"
    finally:
        beacon.close()
    assert "  about 3 min and 0.4 GPU-hours left" in screen()
    assert "GPU-hours  demo  0.5 spent, about 0.4 left to run, 2 allowed" in screen()
