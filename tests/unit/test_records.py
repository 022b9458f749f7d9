"""Record files: whole or absent, and read back as they were."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode, encode, read_json, write_json
from orchestrator.records.rank import (
    Device,
    ExceptionRecord,
    Frame,
    IterationRecord,
    LastBeacon,
    RankRecord,
    StageMemory,
)
from orchestrator.records.spec import AttemptRecord, Batch, BatchTrial, TrialSpec
from orchestrator.vocabulary import Stage

_BYTES = st.none() | st.integers(0, 2**60)
_FLOATS = st.floats(allow_nan=False)
_STAGE_ROWS = st.builds(
    StageMemory,
    stage=st.sampled_from(list(Stage)),
    entries=st.integers(0, 10**6),
    peak_allocated=_BYTES,
    peak_reserved=_BYTES,
    end_allocated=_BYTES,
    end_reserved=_BYTES,
    seconds=st.none() | _FLOATS,
)
_RECORDS = st.builds(
    RankRecord,
    trial=st.text(max_size=5),
    attempt=st.just("001"),
    rank=st.integers(0, 9999),
    world_size=st.integers(1, 9999),
    local_rank=st.integers(0, 7),
    host=st.text(max_size=5),
    started_at=_FLOATS,
    ended_at=st.none() | _FLOATS,
    ended=st.just("exit"),
    exit_code=st.none() | st.integers(0, 255),
    beacon=st.none() | st.builds(LastBeacon, st.sampled_from(list(Stage)), st.integers(0), st.integers(0), _FLOATS),
    device=st.none() | st.builds(Device, kind=st.just("cpu"), throttle_reasons=st.lists(st.text(max_size=3))),
    stages=st.lists(_STAGE_ROWS, max_size=2),
    iterations=st.lists(
        st.builds(
            IterationRecord,
            number=st.integers(1),
            milliseconds=_FLOATS,
            loss=st.none() | _FLOATS,
            grad_norm=st.none() | _FLOATS,
            tflops_per_gpu=st.none() | _FLOATS,
            peak_allocated=_BYTES,
            peak_reserved=_BYTES,
            stages=st.lists(_STAGE_ROWS, max_size=2),
        ),
        max_size=2,
    ),
    exception=st.none()
    | st.builds(
        ExceptionRecord,
        type=st.text(max_size=3),
        message=st.text(max_size=9),
        frames=st.lists(st.builds(Frame, st.text(max_size=2), st.integers(0), st.text(max_size=2)), max_size=2),
        stage=st.none() | st.sampled_from(list(Stage)),
        chain_stages=st.lists(st.none() | st.sampled_from(list(Stage)), max_size=2),
    ),
    notes=st.lists(st.text(max_size=4), max_size=2),
)


@given(record=_RECORDS)
def test_a_rank_record_reads_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, record: RankRecord) -> None:
    path = tmp_path_factory.mktemp("records") / "rank-00000.json"
    write_json(path, record)
    assert decode(RankRecord, read_json(path)) == record


def test_specifications_read_back_as_they_were(tmp_path: Path) -> None:
    spec = TrialSpec(
        "t", "001", "bridge", 8, {"recompute_modules": []}, "/r", "/b", (11, 20), 20, environment={"A": "b"}
    )
    trial = BatchTrial("t", "name", "trial", "bridge", 8, {"recompute_modules": None}, (11, 20), 20)
    batch = Batch("b", "s", 1.5, "/results", [trial], {"kind": "local"})
    attempt = AttemptRecord("t", "001", "b", "s", "n", "trial", "bridge", 8, 2.5, "local", exit_codes={"0": -9})
    for value in (spec, batch, attempt):
        write_json(tmp_path / "x.json", value)
        assert decode(type(value), read_json(tmp_path / "x.json")) == value


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Sample:
    SCHEMA: ClassVar[int] = 2

    number: int
    real: float = 0.0
    colour: Colour | None = None
    pair: tuple[int, int] = (1, 2)
    table: dict[str, float] = field(default_factory=dict)
    schema: int = SCHEMA


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "number"),
        ({"number": "1"}, "Sample.number: expected int, got str"),
        ({"number": True}, "Sample.number: expected int, got bool"),
        ({"number": 1, "real": None}, "Sample.real: expected float, got null"),
        ({"number": 1, "colour": "blue"}, "Sample.colour: 'blue' is not one of"),
        ({"number": 1, "pair": [1]}, "Sample.pair: expected 2 items, got 1"),
        ({"number": 1, "table": {"a": "x"}}, r"Sample.table.a: expected float, got str"),
        ({"number": 1, "schema": 3}, "schema 3 is newer than 2"),
        ([], "expected an object, got list"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_named(value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(Sample, value)


def test_fields_of_a_newer_writer_are_left_out() -> None:
    assert decode(Sample, {"number": 1, "schema": 2, "later": [1]}) == Sample(1)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_is_still_json(tmp_path: Path, value: float) -> None:
    write_json(tmp_path / "x.json", IterationRecord(1, 1.0, loss=value))
    json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    read = decode(IterationRecord, read_json(tmp_path / "x.json")).loss
    assert read is not None
    assert read == value or (math.isnan(read) and math.isnan(value))


def test_text_that_is_no_unicode_is_still_json(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"tail": "a\udc80b"})
    assert read_json(tmp_path / "x.json") == {"tail": "a\udc80b"}


def test_a_file_is_the_old_one_until_it_is_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"is": "old"})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"is": "new"})
    assert read_json(path) == {"is": "old"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("content", ["", "{", '{"a": 1', "[" * 100_000, "\x00"])
def test_what_is_no_json_is_said_with_the_files_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rank-00000.json"
    path.write_text(content)
    with pytest.raises(FormatError, match=r"rank-00000\.json: not a JSON file"):
        read_json(path)


def test_what_json_does_not_know_becomes_text() -> None:
    assert encode({"path": Path("/x"), 1: {"b", "a"}, "enum": Colour.RED, "kind": complex(1, 2)}) == {
        "path": "/x",
        "1": ["a", "b"],
        "enum": "red",
        "kind": "(1+2j)",
    }


def test_two_callers_at_once_get_two_attempts(tmp_path: Path) -> None:
    assert [layout.new_attempt_dir(tmp_path, "t").name for _ in range(3)] == ["001", "002", "003"]
    (layout.trial_dir(tmp_path, "t") / "007").mkdir()
    assert layout.new_attempt_dir(tmp_path, "t").name == "008"


def test_only_rank_records_are_taken_for_rank_records(tmp_path: Path) -> None:
    for name in ("rank-00002.json", "rank-00000.json", ".rank-00001.json.abc", "rank-1.json", "rank-00003.log"):
        (tmp_path / name).touch()
    assert list(layout.rank_files(tmp_path)) == [0, 2]


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    layout.make_private_dir(tmp_path / "a" / "b")
    layout.check_private(tmp_path / "a" / "b")
    (tmp_path / "a" / "b").chmod(0o770)
    with pytest.raises(layout.UntrustedFolderError, match="chmod go-w"):
        layout.check_private(tmp_path / "a" / "b")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_every_folder_that_is_created_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        attempt = layout.new_attempt_dir(tmp_path / "results", "trial")
    finally:
        os.umask(before)
    for folder in (attempt, attempt.parent, layout.runs_dir(tmp_path / "results"), tmp_path / "results"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "attempt.json", 0o600)
    with pytest.raises(layout.UntrustedFolderError, match="neither a file nor a folder"):
        layout.check_private(tmp_path / "attempt.json")


def test_names_that_are_no_attempts_do_not_count(tmp_path: Path) -> None:
    for name in ("²", "x", "-1", "007"):
        (layout.trial_dir(tmp_path, "t") / name).mkdir(parents=True)
    assert layout.new_attempt_dir(tmp_path, "t").name == "008"


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    layout.make_private_dir(tmp_path)
    layout.make_private_dir(tmp_path / "inside")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(layout.UntrustedFolderError, match="belongs to another user"):
        layout.check_private(tmp_path)


def test_a_record_of_today_reads_without_the_fields_that_came_later() -> None:
    record = RankRecord("t", "001", 0, 1, 0, "h", 1.0, 2.0, "exit")
    old = encode(record)
    del old["host_oom_kills"]
    assert decode(RankRecord, old) == replace(record, host_oom_kills=None)
