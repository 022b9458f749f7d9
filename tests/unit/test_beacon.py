"""The beacon: what a reader finds of what a writer left, at any instant."""

from __future__ import annotations

import itertools
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import beacon as module
from orchestrator.records.beacon import (
    FLAG_FINISHED,
    FLAG_MEASURED,
    FLAG_OPTIMIZER_STATE,
    MAX_ITERATIONS,
    BeaconReader,
    BeaconWriter,
    beacon_size,
    read_head,
)
from orchestrator.records.jsonfile import FormatError
from orchestrator.records.rank import IterationRecord, StageMemory
from orchestrator.vocabulary import Stage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-00000.beacon"


@given(
    stage=st.sampled_from(list(Stage)),
    iteration=st.integers(0, 2**32 - 1),
    microbatch=st.integers(0, 2**24 - 1),
)
def test_where_a_rank_is_reads_back(stage: Stage, iteration: int, microbatch: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b"
        BeaconWriter(path, 1).at(stage, iteration, microbatch)
        last = BeaconReader(path).last
    assert (last.stage, last.iteration, last.microbatch) == (stage, iteration, microbatch)
    assert abs(last.at - time.time()) < 60


def test_a_beacon_outlives_sigkill_of_its_writer(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from orchestrator.records.beacon import BeaconWriter; from orchestrator.vocabulary import Stage\n"
        f"BeaconWriter(Path({str(path)!r}), 5).at(Stage.REPLAY, 3, 2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    assert process.wait() == -signal.SIGKILL
    reader = BeaconReader(path)
    assert (reader.last.stage, reader.last.iteration, reader.last.microbatch) == (Stage.REPLAY, 3, 2)
    assert reader.pid == process.pid


def test_windows_of_a_stage_join(path: Path) -> None:
    writer = BeaconWriter(path, 2)
    forward = Stage.FORWARD.code
    writer.begin_iteration(1)
    writer.credit(forward, 1, 100, 200, 50, 60, 0.5)
    writer.credit(forward, 0, 80, 300, 40, 70, 0.25)
    writer.begin_iteration(2)
    writer.credit(forward, 1, 10, 20, 5, 6, 1.0)
    (total,) = BeaconReader(path).stages()
    assert (total.entries, total.peak_allocated, total.peak_reserved) == (2, 100, 300)
    assert (total.end_allocated, total.end_reserved, total.seconds) == (5, 6, 1.75)


def test_a_size_that_was_not_read_changes_none_that_was(path: Path) -> None:
    writer = BeaconWriter(path, 1)
    writer.credit(Stage.FORWARD.code, 1, 100, 200, 50, 60, 0.0)
    writer.credit(Stage.FORWARD.code, 1, -1, -1, -1, -1, 0.0)
    writer.credit(Stage.BACKWARD.code, 1, -1, -1, -1, -1, 0.0)
    forward, backward = BeaconReader(path).stages()
    assert (forward.entries, forward.peak_allocated, forward.end_reserved) == (2, 100, 60)
    assert (backward.peak_allocated, backward.peak_reserved, backward.end_allocated) == (None, None, None)


@given(
    loss=st.none() | st.floats(allow_nan=True, allow_infinity=True),
    norm=st.none() | st.floats(0, 1e9),
    tflops=st.none() | st.floats(0, 1e4),
    skipped=st.booleans(),
    nan=st.booleans(),
    peak=st.none() | st.integers(0, 2**50),
)
def test_an_iteration_reads_back_and_absent_stays_absent(
    loss: float | None, norm: float | None, tflops: float | None, skipped: bool, nan: bool, peak: int | None
) -> None:
    record = IterationRecord(2, 12.5, loss, norm, skipped, nan, tflops, peak, peak)
    with tempfile.TemporaryDirectory() as folder:
        writer = BeaconWriter(Path(folder) / "b", 3)
        writer.end_iteration(record)
        (read,) = BeaconReader(Path(folder) / "b").iterations()
    if loss is not None and math.isnan(loss):
        assert read.loss is not None
        assert math.isnan(read.loss)
    else:
        assert read == record


def test_an_iteration_that_begins_again_starts_afresh(path: Path) -> None:
    writer = BeaconWriter(path, 2)
    writer.credit(Stage.FORWARD.code, 1, 900, 900, 1, 1, 0.0)
    writer.begin_iteration(1)
    writer.credit(Stage.FORWARD.code, 1, 500, 500, 1, 1, 0.0)
    writer.end_iteration(IterationRecord(1, 1.0))
    (row,) = BeaconReader(path).iterations()
    assert [stage.peak_allocated for stage in row.stages] == [500]


def test_totals_count_every_window_of_a_writer_killed_inside_an_iteration(path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path\n"
        "from orchestrator.records.beacon import BeaconWriter; from orchestrator.records.rank import IterationRecord\n"
        "from orchestrator.vocabulary import Stage\n"
        f"writer = BeaconWriter(Path({str(path)!r}), 2); forward = Stage.FORWARD.code\n"
        "writer.credit(Stage.MODEL_BUILD.code, 1, 70, 80, 60, 80, 1.0)\n"
        "for number, peak in ((1, 500), (2, 300), (3, 900), (4, 100)):\n"  # two have rows, four are trained
        "    writer.begin_iteration(number); writer.at(Stage.FORWARD, number, 0)\n"
        "    writer.credit(forward, 1, peak, peak, number, -1, 0.5)\n"
        "    if number < 4: writer.end_iteration(IterationRecord(number, 1.0))\n"
        "writer.credit(forward, 1, 950, 40, 7, -1, 0.25)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    reader = BeaconReader(path)
    build, forward = reader.stages()
    assert (build.entries, build.peak_allocated, build.end_reserved, build.seconds) == (1, 70, 80, 1.0)
    assert (forward.entries, forward.peak_allocated, forward.peak_reserved) == (5, 950, 900)
    assert (forward.end_allocated, forward.end_reserved, forward.seconds) == (7, None, 2.25)
    assert [[stage.peak_allocated for stage in row.stages] for row in reader.iterations()] == [[500], [300]]


def test_a_writer_killed_between_two_iterations_loses_no_window_and_counts_none_twice(path: Path) -> None:
    """The map is looked at after every line that the writer runs while the next iteration begins."""
    writer = BeaconWriter(path, 3)
    writer.begin_iteration(1)
    writer.credit(Stage.FORWARD.code, 1, 100, 200, 50, 60, 0.5)
    writer.end_iteration(IterationRecord(1, 1.0))
    writer.begin_iteration(2)
    writer.credit(Stage.FORWARD.code, 1, 80, 300, 40, 70, 0.25)
    writer.credit(Stage.BACKWARD.code, 2, 400, 400, 40, 70, 2.0)
    writer.end_iteration(IterationRecord(2, 1.0))
    before = BeaconReader(path)
    seen = []

    def look(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == module.__file__:
            seen.append(path.read_bytes())
            return look
        return None

    tracing = sys.gettrace()
    sys.settrace(look)
    try:
        writer.begin_iteration(3)
    finally:
        sys.settrace(tracing)
    assert len(set(seen)) > 5
    for content in set(seen):
        path.write_bytes(content)
        assert BeaconReader(path).stages() == before.stages()
        assert BeaconReader(path).iterations() == before.iterations()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from([Stage.FORWARD, Stage.REPLAY]),
            st.integers(0, 1),
            st.tuples(*[st.integers(-1, 2**45)] * 4),
            st.integers(0, 8),
        )
    )
)
def test_totals_and_rows_are_the_join_of_their_windows(
    windows: list[tuple[int, Stage, int, tuple[int, int, int, int], int]],
) -> None:
    total: dict[Stage, module.Figures] = {}
    rows: dict[int, dict[Stage, module.Figures]] = {}
    iteration = 0
    nothing = (0, -1, -1, -1, -1, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b"
        writer = BeaconWriter(path, 3)
        for number, group in itertools.groupby(windows, key=lambda window: window[0]):
            if number:
                iteration = number
                writer.begin_iteration(iteration)
                rows[iteration] = {}
            for _, stage, entries, sizes, seconds in group:
                writer.edge(stage.code, entries, *sizes, float(seconds), Stage.BACKWARD.code, 12.5)
                for row in (total, rows.get(iteration, {})):
                    row[stage] = module.joined(row.get(stage, nothing), (entries, *sizes, float(seconds)))
            if iteration:
                writer.end_iteration(IterationRecord(iteration, 1.0))
        reader = BeaconReader(path)
    assert {row.stage: figures(row) for row in reader.stages()} == entered(total)
    assert {row.number for row in reader.iterations()} == {number for number in rows if number <= 3}
    for iteration in reader.iterations():
        assert {row.stage: figures(row) for row in iteration.stages} == entered(rows[iteration.number])
    assert reader.last.stage is (Stage.BACKWARD if windows else Stage.STARTUP)


def figures(row: StageMemory) -> module.Figures:
    sizes = (row.peak_allocated, row.peak_reserved, row.end_allocated, row.end_reserved)
    allocated, reserved, end, end_reserved = (-1 if size is None else size for size in sizes)
    assert row.seconds is not None
    return row.entries, allocated, reserved, end, end_reserved, row.seconds


def entered(rows: dict[Stage, module.Figures]) -> dict[Stage, module.Figures]:
    return {stage: row for stage, row in rows.items() if row[0]}


def test_an_edge_changes_the_stage_alone(path: Path) -> None:
    writer = BeaconWriter(path, 1)
    writer.at(Stage.FORWARD, 2**32 - 1, 2**24 - 1)
    writer.stage_at(Stage.REPLAY.code, 12.5)
    last = BeaconReader(path).last
    assert (last.stage, last.iteration, last.microbatch, last.at) == (Stage.REPLAY, 2**32 - 1, 2**24 - 1, 12.5)


def test_the_share_of_the_steady_steps_is_absent_until_one_ended(path: Path) -> None:
    writer = BeaconWriter(path, 1)
    assert BeaconReader(path).steady_share is None
    writer.counters(1, 2, 0.5, 10, 0.004)
    assert (BeaconReader(path).counters, BeaconReader(path).steady_share) == ((1, 2, 0.5, 10), 0.004)


def test_the_stages_of_an_unfinished_iteration_are_told_apart(path: Path) -> None:
    writer = BeaconWriter(path, 3)
    writer.end_iteration(IterationRecord(1, 1.0))
    writer.begin_iteration(2)
    writer.at(Stage.BACKWARD, 2, 0)
    writer.credit(Stage.FORWARD.code, 1, 10, 10, 1, 1, 0.0)
    reader = BeaconReader(path)
    assert [row.number for row in reader.iterations()] == [1]
    assert [row.stage for row in reader.unfinished_stages()] == [Stage.FORWARD]


def test_iterations_past_the_last_row_count_in_the_totals_alone(path: Path) -> None:
    writer = BeaconWriter(path, 1)
    writer.begin_iteration(2)
    writer.credit(Stage.FORWARD.code, 1, 10, 10, 1, 1, 0.0)
    writer.end_iteration(IterationRecord(2, 1.0))
    reader = BeaconReader(path)
    assert reader.iterations() == []
    assert [row.entries for row in reader.stages()] == [1]
    assert path.stat().st_size == beacon_size(1)


def test_a_very_long_training_does_not_fill_the_node(path: Path) -> None:
    assert BeaconWriter(path, 10**9).rows == MAX_ITERATIONS


def test_flags_are_raised_and_lowered_one_by_one(path: Path) -> None:
    writer = BeaconWriter(path, 1)
    writer.raise_flag(FLAG_MEASURED)
    writer.raise_flag(FLAG_FINISHED)
    writer.lower_flag(FLAG_FINISHED)
    reader = BeaconReader(path)
    assert [reader.flag(flag) for flag in (FLAG_MEASURED, FLAG_FINISHED, FLAG_OPTIMIZER_STATE)] == [True, False, False]


def test_the_head_says_when_the_word_changed(path: Path) -> None:
    assert read_head(path) is None
    writer = BeaconWriter(path, 2)
    before = read_head(path)
    writer.at(Stage.FORWARD, 1, 0)
    writer.raise_flag(FLAG_MEASURED)
    after = read_head(path)
    assert before is not None
    assert after is not None
    assert before.word != after.word
    assert before.at <= after.at
    assert (before.flag(FLAG_MEASURED), after.flag(FLAG_MEASURED)) == (False, True)
    assert after.pid == os.getpid()


@pytest.mark.parametrize("content", [b"", b"RCBEACON", b"x" * 4096])
def test_what_is_no_beacon_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(FormatError, match="not a beacon"):
        BeaconReader(path)
    assert read_head(path) is None


def test_a_beacon_that_is_cut_short_is_refused(path: Path) -> None:
    BeaconWriter(path, 5)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(FormatError, match="cut short"):
        BeaconReader(path)


def test_a_beacon_of_another_release_is_refused(path: Path) -> None:
    BeaconWriter(path, 1)
    content = bytearray(path.read_bytes())
    for schema, words in ((module.SCHEMA + 1, "newer than"), (module.SCHEMA - 1, "older than")):
        struct.pack_into("@I", content, 8, schema)
        path.write_bytes(content)
        with pytest.raises(FormatError, match=words):
            BeaconReader(path)


def test_others_cannot_read_a_beacon_or_have_us_write_elsewhere(path: Path, tmp_path: Path) -> None:
    BeaconWriter(path, 1)
    assert path.stat().st_mode & 0o077 == 0
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "link"
    link.symlink_to(victim)
    with pytest.raises(OSError):
        BeaconWriter(link, 1)
    assert victim.read_text() == "precious"
