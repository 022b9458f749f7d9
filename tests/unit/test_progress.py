"""What a person sees of a running study."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.dispatch.journal import ENDED, STARTED, Event, read_events, write_event
from orchestrator.dispatch.liveness import DRIVER_FILE, FAILED, CurrentTrial, DriverState
from orchestrator.records import layout
from orchestrator.records.beacon import BeaconWriter
from orchestrator.records.jsonfile import write_json
from orchestrator.records.rank import LastBeacon
from orchestrator.report.progress import current_line, event_line, follow, slowest_rank
from orchestrator.vocabulary import Stage


def ended(**more: object) -> Event:
    return Event(9.0, ENDED, "t", "001", "core_attn", "trial", seconds=3.21, **more)  # type: ignore[arg-type]


def test_an_ended_trial_is_one_line_with_its_label_and_place_in_the_batch() -> None:
    assert event_line(ended(label="OOM-fwd", done=2, total=6)) == "[2/6] core_attn: OOM-fwd in 3.2 s"


def test_a_trial_that_is_tried_again_or_was_cut_short_says_so() -> None:
    assert event_line(ended(label="failed:hang", retried=True)) == "core_attn: failed:hang in 3.2 s, tried again"
    assert event_line(ended(cut_short="job_time_limit")) == "core_attn: cut short (job time limit) in 3.2 s"


def test_a_running_trial_shows_where_its_slowest_rank_is(tmp_path: Path) -> None:
    for rank, iteration in ((0, 3), (1, 2)):
        BeaconWriter(layout.beacon_file(tmp_path, rank), 4).at(Stage.BACKWARD, iteration, 0)
    (tmp_path / "rank-00002.beacon").write_bytes(b"half of one")
    last = slowest_rank(tmp_path)
    assert last is not None
    assert last.iteration == 2
    current = CurrentTrial("t", "001", "mlp", "trial", 100.0, str(tmp_path), "")
    assert current_line(current, last, 112.4) == "mlp: backward iteration 2, 12 s"
    assert current_line(current, None, 101.0) == "mlp: starting, 1 s"
    assert current_line(current, LastBeacon(Stage.MODEL_BUILD, 0, 0, 1.0), 103.0) == "mlp: model_build, 3 s"


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    write_event(tmp_path, ended())
    journal = tmp_path / "journal.jsonl"
    text = journal.read_text()
    journal.write_text(text + text[:20])
    events, offset = read_events(tmp_path)
    assert (events, offset) == ([ended()], len(text))
    journal.write_text(text + text)
    assert read_events(tmp_path, offset)[0] == [ended()]


def batch_with(tmp_path: Path, state: str, error: str | None = None) -> None:
    folder = layout.batch_dir(tmp_path, "b")
    layout.make_private_dir(folder)
    write_event(folder, Event(1.0, STARTED, "t", "001", "mlp", "trial"))
    write_event(folder, ended(label="pass", done=1, total=1))
    now = time.time()
    write_json(folder / DRIVER_FILE, DriverState("b", os.getpid(), 0, "h", now, now, state, 1, 1, error=error))


def test_a_pipe_gets_plain_lines_to_the_end(tmp_path: Path) -> None:
    batch_with(tmp_path, "finished")
    stream = io.StringIO()
    follow(tmp_path, ["b"], Console(file=stream, width=200))
    assert stream.getvalue().splitlines() == ["mlp: started", "[1/1] core_attn: pass in 3.2 s"]


def test_a_driver_that_failed_ends_the_command_in_its_words(tmp_path: Path) -> None:
    batch_with(tmp_path, FAILED, "OSError: no space left")
    with pytest.raises(EnvironmentFailure, match="no space left"):
        follow(tmp_path, ["b"], Console(file=io.StringIO()))
