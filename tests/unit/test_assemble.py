"""A record is put together from whatever is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import layout
from orchestrator.records.assemble import TAIL_BYTES, Ending, assemble, lost_record
from orchestrator.records.beacon import FLAG_MEASURED, FLAG_UNWINDING, BeaconWriter
from orchestrator.records.jsonfile import decode, encode, read_json, write_json
from orchestrator.records.rank import ENDED_EXIT, ENDED_LOST, Device, IterationRecord, RankRecord
from orchestrator.records.spec import TrialSpec
from orchestrator.vocabulary import Stage

ENDING = Ending(ENDED_EXIT, started_at=10.0, ended_at=20.0, exit_code=1)


@pytest.fixture
def spec(tmp_path: Path) -> TrialSpec:
    for name in ("run", "node"):
        (tmp_path / name).mkdir(mode=0o700)
    return TrialSpec("t", "002", "x", 4, {}, str(tmp_path / "run"), str(tmp_path / "node"), (2, 3), 4)


def beacon(spec: TrialSpec, rank: int = 1) -> BeaconWriter:
    return BeaconWriter(layout.beacon_file(Path(spec.beacon_dir), rank), spec.train_iters)


def facts(spec: TrialSpec, value: Any, rank: int = 1) -> None:
    write_json(layout.facts_file(Path(spec.beacon_dir), rank), value)


def test_nothing_left_is_still_a_record(spec: TrialSpec) -> None:
    record = assemble(spec, 1, ENDING, local_rank=1, host="node7")
    assert (record.trial, record.attempt, record.rank, record.world_size) == ("t", "002", 1, 4)
    assert (record.local_rank, record.host) == (1, "node7")
    assert (record.beacon, record.device, record.effective, record.exception) == (None, None, None, None)
    assert (record.optimizer_state, record.allocator_ooms) == (None, None)
    assert record.notes == ["no beacon: the trainer ended before it made one"]


def test_facts_and_beacon_come_together(spec: TrialSpec) -> None:
    writer = beacon(spec)
    writer.end_iteration(IterationRecord(1, 5.0, loss=2.0))
    writer.counters(1, 0, 0.5, 100, 0.002)
    writer.raise_flag(FLAG_MEASURED)
    facts(
        spec,
        {
            "place": {"local_rank": 3, "host": "gpu4"},
            "device": {"kind": "cuda", "name": "H100", "capacity_bytes": 80_000_000_000},
            "software": {"torch": {"version": "2.6"}},
            "effective": {"model": {"hidden_size": 8}},
            "notes": ["said by the trainer"],
        },
    )
    record = assemble(spec, 1, ENDING)
    assert (record.local_rank, record.host, record.measured) == (3, "gpu4", True)
    assert record.device == Device("cuda", "H100", capacity_bytes=80_000_000_000)
    assert [row.loss for row in record.iterations] == [2.0]
    assert record.recorder == {"seconds": 0.5, "calls": 100, "paused": False, "steady_share": 0.002}
    assert record.notes == ["said by the trainer"]
    assert decode(RankRecord, encode(record)) == record


def test_facts_that_are_not_what_they_should_be_are_noted_and_left_out(spec: TrialSpec) -> None:
    beacon(spec)
    facts(spec, {"device": {"name": 3}, "software": ["torch"], "exception": {"type": 5}})
    record = assemble(spec, 1, ENDING)
    assert (record.device, record.software, record.exception) == (None, {}, None)
    assert len(record.notes) == 3


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_facts_that_are_no_object_are_noted(spec: TrialSpec, content: str) -> None:
    beacon(spec)
    layout.facts_file(Path(spec.beacon_dir), 1).write_text(content)
    (note,) = assemble(spec, 1, ENDING).notes
    assert "facts" in note


def test_a_beacon_that_is_broken_is_noted(spec: TrialSpec) -> None:
    layout.beacon_file(Path(spec.beacon_dir), 1).write_bytes(b"RC")
    record = assemble(spec, 1, ENDING)
    assert record.beacon is None
    assert "the beacon cannot be read" in record.notes[0]


def test_an_exception_under_way_counts_only_while_nobody_handled_it(spec: TrialSpec) -> None:
    writer = beacon(spec)
    facts(spec, {"raised": {"type": "ValueError", "message": "x", "stage": "forward"}})
    assert assemble(spec, 1, ENDING).exception is None
    writer.raise_flag(FLAG_UNWINDING)
    found = assemble(spec, 1, ENDING).exception
    assert found is not None
    assert found.stage is Stage.FORWARD


def test_a_lost_rank_has_the_last_of_its_log_without_secrets(spec: TrialSpec) -> None:
    writer = beacon(spec)
    writer.at(Stage.BACKWARD, 2, 1)
    log = layout.rank_log(Path(spec.run_dir), 1)
    log.write_text("old\n" + "x" * TAIL_BYTES + "\npostgresql://me:hunter2@db/\n")
    record = lost_record(spec, 1, local_rank=1, host="gpu4")
    assert (record.ended, record.host) == (ENDED_LOST, "gpu4")
    assert record.beacon is not None
    assert record.ended_at == record.beacon.at
    assert record.stderr_tail.endswith("postgresql://me:<redacted>@db/\n")
    assert "old" not in record.stderr_tail
    assert "hunter2" not in record.stderr_tail


def test_an_iteration_that_was_not_finished_is_described(spec: TrialSpec) -> None:
    writer = beacon(spec)
    writer.begin_iteration(1)
    writer.credit(Stage.FORWARD.code, 2, 5, 5, 5, 5, 0.1)
    writer.at(Stage.BACKWARD, 1, 1)
    (note,) = assemble(spec, 1, ENDING).notes
    assert note == "iteration 1 was not finished; stages entered and left in it: forward 2"


def test_assembling_changes_no_file(spec: TrialSpec) -> None:
    beacon(spec)
    facts(spec, {"notes": []})
    before = {path: path.stat().st_mtime_ns for path in Path(spec.beacon_dir).iterdir()}
    lost_record(spec, 1)
    assert {path: path.stat().st_mtime_ns for path in Path(spec.beacon_dir).iterdir()} == before
    assert read_json(layout.facts_file(Path(spec.beacon_dir), 1)) == {"notes": []}
