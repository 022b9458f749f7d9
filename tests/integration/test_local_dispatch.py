"""A driver of this machine, real supervisors, and trainers that die in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.dispatch.attempt import attempt_dirs, judge, rank_records, read_attempt, read_spec
from orchestrator.dispatch.batch import Ask, BatchSettings, make_batches
from orchestrator.dispatch.dead import bury_dead_batches
from orchestrator.dispatch.liveness import read_driver_state
from orchestrator.dispatch.local import local_environment
from orchestrator.dispatch.submit import (
    cancel,
    live_batches,
    start_driver,
    submit_local,
    wait_for_end,
    write_batch,
)
from orchestrator.plan.candidate import Candidate, trial_id
from orchestrator.records import layout
from orchestrator.records.rank import ENDED_LOST, ENDED_SIGNAL
from orchestrator.records.spec import ROLE_CONTROL_FIRST, AttemptRecord, Batch, BatchTrial
from orchestrator.vocabulary import Stage

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fake_trainer")]


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "results"
    yield folder
    for process in processes_of(folder):
        process.kill()


def trial(name: str, *, trainer: str = "fake_trainer:train", iterations: int = 2, **fake: Any) -> BatchTrial:
    return BatchTrial(
        trial=name.ljust(20, "0"),
        name=name,
        role="trial",
        trainer=trainer,
        world_size=2,
        config={"fake": fake},
        steady_window=(1, iterations),
        train_iters=iterations,
    )


def start(results: Path, *trials: BatchTrial, name: str = "b1", **more: Any) -> Path:
    batch = Batch(name, "study", time.time(), str(results), list(trials), {"kind": "local"}, **more)
    batch_dir = write_batch(batch)
    start_driver(batch_dir)
    return batch_dir


def run(results: Path, *trials: BatchTrial, **more: Any) -> Path:
    batch_dir = start(results, *trials, **more)
    assert wait_for_end(results, batch_dir.name, 60), (batch_dir / "driver.log").read_text()
    return batch_dir


def outcomes(results: Path, name: str) -> list[Any]:
    found = []
    for folder in attempt_dirs(results, name.ljust(20, "0")):
        record, spec = read_attempt(folder), read_spec(folder)
        assert record is not None
        assert spec is not None
        found.append(judge(record, spec))
    return found


def last_attempt(results: Path, name: str) -> tuple[Path, AttemptRecord]:
    folder = attempt_dirs(results, name.ljust(20, "0"))[-1]
    record = read_attempt(folder)
    assert record is not None
    return folder, record


def processes_of(results: Path) -> list[psutil.Process]:
    """Every process, driver included, that was started for something below this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(results) in word for word in process.info["cmdline"] or []) and process.pid != os.getpid():
            found.append(process)
    return found


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return value


def ranks_of(results: Path) -> list[psutil.Process]:
    return [process for process in processes_of(results) if "orchestrator.trial" in process.cmdline()]


def test_one_failing_trial_does_not_stop_the_others(results: Path) -> None:
    run(results, trial("bad", stage="forward", iteration=1, what="raise"), trial("good"))
    assert [outcome.label for outcome in outcomes(results, "good")] == ["pass"]
    (bad,) = outcomes(results, "bad")
    assert (bad.stage, bad.rank) == (Stage.FORWARD, 0)
    _, record = last_attempt(results, "good")
    assert record.exit_codes == {"0": 0, "1": 0}
    spec = read_spec(last_attempt(results, "good")[0])
    assert spec is not None
    assert not Path(spec.beacon_dir).exists(), "the node-local folder is removed"


def test_no_more_is_started_where_a_control_and_a_trial_never_began(results: Path) -> None:
    message = "ModuleNotFoundError: No module named 'transformer_engine'"
    fails = {"stage": "model_build", "what": "raise", "message": message}
    control = replace(trial("control", **fails), role=ROLE_CONTROL_FIRST)
    batch_dir = run(results, control, trial("behind", **fails), trial("third"), trial("last"))
    for name in ("control", "behind"):
        assert [one.label for one in outcomes(results, name)] == ["failed:import_error"]
    assert not attempt_dirs(results, "third".ljust(20, "0"))
    state = read_driver_state(batch_dir)
    assert state is not None
    assert (state.state, state.done, state.open_trials) == ("finished", 2, [])
    assert state.held_back == ["third".ljust(20, "0"), "last".ljust(20, "0")]


@pytest.mark.parametrize("stage", [Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER_STEP])
def test_a_killed_trainer_leaves_its_stage_and_no_process(results: Path, stage: Stage) -> None:
    run(results, trial("t", stage=stage.value, iteration=2, what="kill", ranks=[1]))
    folder, _ = last_attempt(results, "t")
    record = rank_records(folder)[1]
    assert (record.ended, record.signal) == (ENDED_SIGNAL, signal.SIGKILL)
    assert record.beacon is not None
    assert (record.beacon.stage, record.beacon.iteration) == (stage, 2)
    assert set(rank_records(folder)) == {0, 1}
    assert processes_of(results) == []
    (outcome,) = outcomes(results, "t")
    assert (outcome.rank, outcome.stage, outcome.iteration) == (1, stage, 1)


def test_a_killed_rank_ends_the_hanging_other_within_five_seconds(results: Path) -> None:
    start(results, trial("t", stage="backward", iteration=1, what="hang", ranks=[0, 1]))
    children = until(lambda: [p for p in processes_of(results) if "orchestrator.trial.child" in p.cmdline()][1:])
    until(lambda: stage_of(results, "t") is Stage.BACKWARD)
    children[0].send_signal(signal.SIGKILL)
    until(lambda: not processes_of(results), seconds=5.0)
    assert len(rank_records(last_attempt(results, "t")[0])) == 2


def stage_of(results: Path, name: str) -> Stage | None:
    from orchestrator.records.beacon import BeaconReader
    from orchestrator.records.jsonfile import FormatError

    state = read_driver_state(layout.batch_dir(results, "b1"))
    if state is None or not state.current or state.current[0].name != name:
        return None
    try:
        return BeaconReader(layout.beacon_file(Path(state.current[0].beacon_dir), 0)).last.stage
    except (FormatError, FileNotFoundError):
        return None


def test_a_killed_supervisor_is_recorded_from_its_beacon(results: Path) -> None:
    run(results, trial("t", stage="backward", iteration=1, what="kill_supervisor", ranks=[1]))
    folder, attempt = last_attempt(results, "t")
    record = rank_records(folder)[1]
    assert record.ended == ENDED_LOST
    assert record.beacon is not None
    assert record.beacon.stage is Stage.BACKWARD
    assert attempt.exit_codes["1"] == -signal.SIGKILL
    assert processes_of(results) == []


def test_cancelling_a_batch_ends_what_runs_and_starts_nothing_more(results: Path) -> None:
    start(results, trial("t", stage="forward", iteration=1, what="hang"), trial("u"))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    started = time.monotonic()
    cancel(results, "b1")
    assert wait_for_end(results, "b1", 10)
    assert time.monotonic() - started < 5
    assert last_attempt(results, "t")[1].cancelled
    assert [outcome.label for outcome in outcomes(results, "t")] == ["failed:cancelled"]
    assert attempt_dirs(results, "u".ljust(20, "0")) == []
    assert processes_of(results) == []


def test_a_driver_asked_to_terminate_cancels(results: Path) -> None:
    batch_dir = start(results, trial("t", stage="forward", iteration=1, what="hang"))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    state = read_driver_state(batch_dir)
    assert state is not None
    os.kill(state.pid, signal.SIGTERM)
    assert wait_for_end(results, "b1", 10)
    assert [outcome.label for outcome in outcomes(results, "t")] == ["failed:cancelled"]


def test_cancelling_one_trial_leaves_the_rest(results: Path) -> None:
    start(results, trial("t", stage="forward", iteration=1, what="hang"), trial("u"))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    cancel(results, "b1", ["t".ljust(20, "0")])
    assert wait_for_end(results, "b1", 20)
    assert [outcome.label for outcome in outcomes(results, "t")] == ["failed:cancelled"]
    assert [outcome.label for outcome in outcomes(results, "u")] == ["pass"]


def test_a_rank_can_tell_that_its_driver_ended_before_it_looked() -> None:
    """By the pid: one that is still starting when its driver dies would otherwise never hear of it."""
    assert local_environment({}, 0, 1, 29500, 1)["ORCHESTRATOR_PARENT_DEATH"] == str(os.getpid())


def test_a_killed_driver_takes_its_ranks_along_and_its_trial_is_open_again(results: Path) -> None:
    batch_dir = start(results, trial("t", stage="forward", iteration=1, what="hang", ranks=[0, 1]))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    state = read_driver_state(batch_dir)
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    until(lambda: not processes_of(results), seconds=5.0)
    assert live_batches(results) == []
    assert bury_dead_batches(results) == ["b1"]
    _, record = last_attempt(results, "t")
    assert (record.cut_short, record.cancelled) == ("driver_lost", False)
    assert record.ended_at is not None
    assert [outcome.label for outcome in outcomes(results, "t")] == [None]
    assert bury_dead_batches(results) == []


@pytest.mark.parametrize("damaged", ["batch.json", "driver.json"])
def test_a_killed_driver_is_buried_also_where_a_file_of_its_batch_is_damaged(results: Path, damaged: str) -> None:
    batch_dir = start(results, trial("t", stage="forward", iteration=1, what="hang", ranks=[0, 1]))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    state = read_driver_state(batch_dir)
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    until(lambda: not processes_of(results), seconds=5.0)
    (batch_dir / damaged).write_text("{ torn")
    assert bury_dead_batches(results) == ["b1"]
    folder, record = last_attempt(results, "t")
    assert record.cut_short == "driver_lost"
    spec = read_spec(folder)
    assert spec is not None
    assert not Path(spec.beacon_dir).exists()
    assert bury_dead_batches(results) == []


def test_a_driver_killed_before_its_first_word_leaves_nothing_waiting(results: Path) -> None:
    batch = Batch("b1", "study", time.time(), str(results), [trial("t")], {"kind": "local"})
    batch_dir = write_batch(batch)
    assert bury_dead_batches(results) == ["b1"]
    state = read_driver_state(batch_dir)
    assert state is not None
    assert (state.state, state.open_trials) == ("lost", [])


def test_what_a_failed_driver_was_running_gets_an_end_too(results: Path) -> None:
    batch_dir = start(results, trial("t", stage="forward", iteration=1, what="hang", ranks=[0, 1]))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    (batch_dir / "cancel.json").mkdir()  # what a driver cannot read makes it fail
    assert wait_for_end(results, "b1", 30)
    state = read_driver_state(batch_dir)
    assert state is not None
    assert state.state == "failed"
    assert bury_dead_batches(results) == ["b1"]
    _, record = last_attempt(results, "t")
    assert record.ended_at is not None
    after = read_driver_state(batch_dir)
    assert after is not None
    assert (after.state, after.error) == ("failed", state.error)
    assert bury_dead_batches(results) == []


def test_a_second_driver_of_a_batch_does_only_what_the_first_left(results: Path) -> None:
    batch_dir = start(results, trial("a"), trial("t", stage="forward", iteration=1, what="hang"))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    state = read_driver_state(batch_dir)
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    until(lambda: not processes_of(results), seconds=5.0)
    start_driver(batch_dir)
    until(lambda: len(attempt_dirs(results, "t".ljust(20, "0"))) == 2)
    cancel(results, "b1")
    assert wait_for_end(results, "b1", 10)
    assert len(attempt_dirs(results, "a".ljust(20, "0"))) == 1


def test_a_trainer_that_cannot_start_is_tried_again_only_where_its_cause_says_so(results: Path) -> None:
    hang = trial("t", stage="forward", iteration=1, what="hang")
    impatient = BatchTrial(**{**hang.__dict__, "stall_seconds": 1.0})
    run(results, impatient, trial("x", trainer="no_such_module:train"), max_attempts=2)
    assert [outcome.label for outcome in outcomes(results, "t")] == ["failed:hang"] * 2
    assert [outcome.label for outcome in outcomes(results, "x")] == ["failed:import_error"]


def test_a_setup_line_that_fails_is_a_launch_failure_in_its_own_words(results: Path) -> None:
    batch = Batch(
        "b1", "s", 0.0, str(results), [trial("t")], {"kind": "local", "setup": ["echo no such module >&2; false"]}
    )
    start_driver(write_batch(batch))
    assert wait_for_end(results, "b1", 20)
    (outcome,) = outcomes(results, "t")
    assert outcome.label == "failed:launch"
    assert "no such module" in (last_attempt(results, "t")[1].launch_error or "")


def test_drivers_live_in_a_session_of_their_own(results: Path) -> None:
    batch_dir = start(results, trial("t", stage="forward", iteration=1, what="hang"))
    state = until(lambda: read_driver_state(batch_dir))
    assert os.getsid(state.pid) == state.pid
    os.kill(state.pid, signal.SIGHUP)  # what a closed terminal would send
    time.sleep(0.3)
    assert live_batches(results)
    cancel(results, "b1")
    assert wait_for_end(results, "b1", 10)


def asks(*names: str) -> list[Ask]:
    found = []
    for name in names:
        request = {
            "recompute_granularity": "selective",
            "recompute_modules": [] if name == "control" else [name],
            "parallelism": {"world_size": 2},
            "training": {"train_iters": 2, "steady_window": [1, 2]},
            "trainer": {"name": "fake_trainer:train"},
        }
        candidate = Candidate(name, request)
        found.append(Ask(trial_id(candidate), candidate))
    return found


def settings(results: Path, **more: Any) -> BatchSettings:
    return BatchSettings(
        study="s", results_dir=str(results), created_at=time.time(), launcher={"kind": "local"}, one_batch=True, **more
    )


def test_a_trial_that_got_its_result_since_it_was_planned_is_not_started(results: Path) -> None:
    wanted = asks("control", "mlp")
    submitted = submit_local(wanted, settings(results), measured=lambda: [ask.trial for ask in wanted])
    assert submitted.batches == ()
    assert not list((results / "batches").glob("*/batch.json"))


def test_a_trial_in_a_live_batch_is_not_dispatched_again(results: Path) -> None:
    wanted = asks("control", "mlp", "moe")
    first = submit_local(wanted, settings(results))
    second = submit_local(wanted, settings(results))
    assert len(first.batches) == 1
    assert second.batches == ()
    assert set(second.elsewhere) == {ask.trial for ask in wanted}
    assert wait_for_end(results, first.batches[0].batch, 60)
    for ask in wanted:
        assert len(attempt_dirs(results, ask.trial)) == 1


def test_two_commands_at_once_run_every_trial_once(results: Path) -> None:
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[2]);"
        "from test_local_dispatch import asks, settings, submit_local;"
        "submit_local(asks('control', 'mlp', 'moe'), settings(pathlib.Path(sys.argv[1])))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", script, str(results), str(Path(__file__).parent)]) for _ in range(2)
    ]
    assert [process.wait(30) for process in both] == [0, 0]
    for live in live_batches(results):
        assert wait_for_end(results, live.batch, 60)
    for ask in asks("control", "mlp", "moe"):
        assert len(attempt_dirs(results, ask.trial)) == 1


def test_a_batch_that_makes_its_own_control_runs_it_first(results: Path) -> None:
    (batch,) = make_batches(asks("mlp"), settings(results))
    start_driver(write_batch(batch))
    assert wait_for_end(results, batch.batch, 60)
    assert batch.trials[0].role == ROLE_CONTROL_FIRST
    first = read_attempt(attempt_dirs(results, batch.trials[0].trial)[0])
    second = read_attempt(attempt_dirs(results, batch.trials[1].trial)[0])
    assert first is not None
    assert second is not None
    assert (first.ended_at or 0) <= second.started_at
