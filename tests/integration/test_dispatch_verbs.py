"""watch, logs, cancel and retry, on a study of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_local_dispatch import outcomes, run, stage_of, start, trial, until

from orchestrator.dispatch.attempt import attempt_dirs
from orchestrator.dispatch.submit import handing_over, live_batches, wait_for_end
from orchestrator.records import layout
from orchestrator.vocabulary import Stage

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fake_trainer")]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    layout.make_private_dir(folder)
    return folder


def verb(results: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words, "--results", str(results)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_logs_shows_the_rank_that_failed_first(results: Path) -> None:
    run(results, trial("bad", stage="forward", iteration=1, what="raise", ranks=[1]))
    assert "RuntimeError: as it was told" in verb(results, "logs", "bad")
    said = json.loads(verb(results, "logs", "bad", "--json"))
    assert (said["rank"], said["attempt"]) == (1, "001")
    assert verb(results, "logs", "bad", "--rank", "1", "-n", "1").count("\n") == 1


def test_logs_follows_until_the_attempt_ends(results: Path) -> None:
    start(results, trial("t", stage="forward", iteration=1, what="hang"))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    following = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "logs", "t", "-f", "--results", str(results)], stdout=subprocess.PIPE
    )
    until(lambda: (results / "store.sqlite").exists())
    assert following.poll() is None
    verb(results, "cancel", "--all")
    assert following.wait(20) == 0


def test_cancel_ends_a_study_and_says_when_nothing_is_left(results: Path) -> None:
    start(results, trial("t", stage="forward", iteration=1, what="hang"), trial("u"))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    assert "b1" in verb(results, "cancel", "study")
    assert wait_for_end(results, "b1", 10)
    assert [outcome.label for outcome in outcomes(results, "t")] == ["failed:cancelled"]
    assert "Nothing of that runs" in verb(results, "cancel", "study", code=3)
    verb(results, "cancel", code=2)


def test_cancelling_one_trial_leaves_the_others(results: Path) -> None:
    start(results, trial("t", stage="forward", iteration=1, what="hang"), trial("u"))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    verb(results, "cancel", "t")
    assert wait_for_end(results, "b1", 20)
    assert [outcome.label for outcome in outcomes(results, "u")] == ["pass"]


def test_retry_runs_by_label_also_what_has_a_result(results: Path) -> None:
    run(results, trial("good"), trial("bad", stage="forward", iteration=1, what="raise"))
    verb(results, "retry", "study", "--label", "pass")
    for live in live_batches(results):
        assert wait_for_end(results, live.batch, 60)
    assert len(attempt_dirs(results, "good".ljust(20, "0"))) == 2
    assert len(attempt_dirs(results, "bad".ljust(20, "0"))) == 1
    verb(results, "retry", "study")
    for live in live_batches(results):
        assert wait_for_end(results, live.batch, 60)
    assert len(attempt_dirs(results, "bad".ljust(20, "0"))) == 2, "without a filter: what has no result"
    assert "No trial of study is OOM-fwd" in verb(results, "retry", "study", "--label", "OOM-fwd", code=3)


def test_watch_tells_a_pipe_what_changes_and_ends_with_the_last_trial(results: Path) -> None:
    start(results, trial("a"), trial("b"))
    said = verb(results, "watch", "--every", "0.2")
    assert wait_for_end(results, "b1", 1)
    assert "study" in said.splitlines()[0]
    assert any(line.split()[:3] == ["study", "2", "2"] for line in said.splitlines()), said


def test_watch_stays_while_a_command_is_about_to_hand_over_what_it_planned(results: Path) -> None:
    run(results, trial("a"))
    verb(results, "collect")
    watching = [sys.executable, "-m", "orchestrator", "watch", "--every", "0.2", "--results", str(results)]
    with handing_over(results):
        process = subprocess.Popen(watching, stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
    assert process.wait(10) == 0
