"""A rank's record put together from what it left: its beacon, its facts, and how it ended."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.records import layout
from orchestrator.records.beacon import (
    FLAG_MEASURED,
    FLAG_OPTIMIZER_CHECKED,
    FLAG_OPTIMIZER_STATE,
    FLAG_PAUSED,
    FLAG_UNWINDING,
    BeaconReader,
)
from orchestrator.records.jsonfile import FormatError, decode, read_json
from orchestrator.records.rank import ENDED_LOST, Device, ExceptionRecord, RankRecord
from orchestrator.records.redact import redact_text
from orchestrator.records.spec import TrialSpec

T = TypeVar("T")

TAIL_BYTES = 65_536
"""How much of what a rank printed last is kept in its record."""


@dataclass(frozen=True)
class Ending:
    """How a rank ended, as whoever watched it saw it. Times are unix seconds."""

    ended: str
    """One of the `ENDED_` words of `records.rank`."""
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: str = ""
    stacks: str = ""
    host_oom_kills: int | None = None
    notes: list[str] = field(default_factory=list)


def assemble(spec: TrialSpec, rank: int, ending: Ending, local_rank: int = 0, host: str | None = None) -> RankRecord:
    """The record of one rank, from its beacon and facts in `spec.beacon_dir`. Only reads.

    What cannot be read is absent from the record, and a note says so. `local_rank` and `host` are for a rank that
    left no facts, because its trainer ended before it could write any.
    """
    notes: list[str] = list(ending.notes)
    beacon = _beacon(layout.beacon_file(Path(spec.beacon_dir), rank), notes)
    facts = _facts(layout.facts_file(Path(spec.beacon_dir), rank), notes)
    notes += _strings(facts.get("notes"))
    place = facts.get("place") if isinstance(facts.get("place"), dict) else {}
    started_at = ending.started_at if ending.started_at is not None else (beacon.started_at if beacon else 0.0)
    measured = {} if beacon is None else _measured(spec, beacon, notes)
    if measured and isinstance(facts.get("meter"), str):
        measured["recorder"]["meter"] = facts["meter"]
    return RankRecord(
        trial=spec.trial,
        attempt=spec.attempt,
        rank=rank,
        world_size=spec.world_size,
        local_rank=_fact(int, place, "local_rank", notes, local_rank),
        host=_fact(str, place, "host", notes, host or platform.node()),
        started_at=started_at,
        ended_at=ending.ended_at,
        ended=ending.ended,
        exit_code=ending.exit_code,
        signal=ending.signal,
        device=_fact(Device, facts, "device", notes, None),
        exception=_exception(facts, beacon, notes),
        stderr_tail=ending.stderr_tail,
        stacks=redact_text(ending.stacks),
        host_oom_kills=ending.host_oom_kills,
        software=_fact(dict, facts, "software", notes, {}),
        effective=_fact(dict, facts, "effective", notes, None),
        notes=notes,
        **measured,
    )


def lost_record(spec: TrialSpec, rank: int, local_rank: int = 0, host: str | None = None) -> RankRecord:
    """The record of a rank whose supervisor is gone, for the driver of its node. Only reads.

    The tail is of the rank's log, so stdout and stderr together. `ended_at` is the beacon's last word: the rank was
    alive then, and nobody saw it end.
    """
    notes = ["the supervisor left no record: this one was put together from the beacon"]
    head = _beacon(layout.beacon_file(Path(spec.beacon_dir), rank), [])
    ending = Ending(
        ended=ENDED_LOST,
        ended_at=head.last.at if head else None,
        stderr_tail=_log_tail(layout.rank_log(Path(spec.run_dir), rank), notes),
        notes=notes,
    )
    return assemble(spec, rank, ending, local_rank, host)


def _beacon(path: Path, notes: list[str]) -> BeaconReader | None:
    try:
        return BeaconReader(path)
    except FileNotFoundError:
        notes.append("no beacon: the trainer ended before it made one")
    except (FormatError, OSError) as error:
        notes.append(f"the beacon cannot be read: {error}")
    return None


def _facts(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        facts = read_json(path)
    except FileNotFoundError:
        return {}
    except (FormatError, OSError) as error:
        notes.append(f"the facts cannot be read: {error}")
        return {}
    if not isinstance(facts, dict):
        notes.append(f"{path}: expected an object")
        return {}
    return facts


def _measured(spec: TrialSpec, beacon: BeaconReader, notes: list[str]) -> dict[str, Any]:
    """The fields that the beacon alone knows."""
    retries, ooms, seconds, calls = beacon.counters
    paused = beacon.flag(FLAG_PAUSED)
    if paused:
        first, last = spec.steady_window
        notes.append(
            f"the recorder paused in some of iterations {first} to {last}: all of them would have cost more than 0.5 % "
            "of the step; stages were still counted there, and peaks are those of whole iterations"
        )
    unfinished = beacon.unfinished_stages()
    if unfinished:
        words = ", ".join(f"{row.stage} {row.entries}" for row in unfinished)
        notes.append(f"iteration {beacon.last.iteration} was not finished; stages entered and left in it: {words}")
    return {
        "beacon": beacon.last,
        "measured": beacon.flag(FLAG_MEASURED),
        "stages": beacon.stages(),
        "iterations": beacon.iterations(),
        "allocator_retries": retries,
        "allocator_ooms": ooms,
        "optimizer_state": beacon.flag(FLAG_OPTIMIZER_STATE) if beacon.flag(FLAG_OPTIMIZER_CHECKED) else None,
        "recorder": {"seconds": seconds, "calls": calls, "paused": paused, "steady_share": beacon.steady_share},
    }


def _exception(facts: dict[str, Any], beacon: BeaconReader | None, notes: list[str]) -> ExceptionRecord | None:
    """What ended the trainer; or what was still unwinding when it was ended, and may not have been handled."""
    caught: ExceptionRecord | None = _fact(ExceptionRecord, facts, "exception", notes, None)
    if caught is None and beacon is not None and beacon.flag(FLAG_UNWINDING):
        caught = _fact(ExceptionRecord, facts, "raised", notes, None)
    return caught


def _fact(kind: type[T], facts: Any, name: str, notes: list[str], absent: Any) -> Any:
    value = facts.get(name)
    if value is None:
        return absent
    if kind is dict:
        if isinstance(value, dict):
            return value
        notes.append(f"the trainer's {name} is no object, and was left out")
        return absent
    try:
        return decode(kind, value, name)
    except FormatError as error:
        notes.append(f"the trainer's facts are not what they should be: {error}")
        return absent


def _strings(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _log_tail(path: Path, notes: list[str]) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            return redact_text(stream.read().decode("utf-8", "replace"))
    except FileNotFoundError:
        return ""
    except OSError as error:
        notes.append(f"the rank's log cannot be read: {error}")
        return ""
