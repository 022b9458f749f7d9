"""Where memory was, of many attempts at once: by rank and stage, and by stage through one rank's iterations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select

from orchestrator.records.rank import IterationRecord
from orchestrator.store.evidence import rank_record
from orchestrator.store.models import RANK_BITS, Attempt, Rank, StageMemory, Trial

Execution = tuple[str, str]
"""A trial's id and the number of one of its attempts."""

_CHUNK = 200


@dataclass(frozen=True)
class Cell:
    """The largest allocated bytes of one stage on one rank, from set-up to the end of the steady window."""

    rank: int
    stage: str
    allocated: int


@dataclass(frozen=True)
class Executed:
    """Facts of an attempt that a comparison's row does not have."""

    id: int
    run_dir: str
    hosts: tuple[str, ...]
    image: str | None
    """The container image that was asked for, with its digest where one was given."""


def executions(connection: Connection, wanted: Iterable[Execution]) -> dict[Execution, Executed]:
    """The attempts that the database has of those."""
    found: dict[Execution, Executed] = {}
    for chunk in _chunks(sorted(set(wanted))):
        which = or_(*(and_(Attempt.trial_id == trial, Attempt.number == number) for trial, number in chunk))
        query = select(Attempt.id, Attempt.trial_id, Attempt.number, Attempt.run_dir, Attempt.hosts, Trial.target).join(
            Trial, Trial.id == Attempt.trial_id
        )
        for row in connection.execute(query.where(which)):
            target = row.target or {}
            image = " ".join(str(target[key]) for key in ("image", "digest") if target.get(key))
            hosts = tuple(map(str, row.hosts or ()))
            found[row.trial_id, row.number] = Executed(row.id, row.run_dir, hosts, image or None)
    return found


def memory_maps(connection: Connection, attempts: Sequence[int]) -> dict[int, list[Cell]]:
    """Cells of each attempt, by its id in the database; attempts without a recorded stage are left out."""
    found: dict[int, list[Cell]] = {}
    size = func.coalesce(StageMemory.window_allocated, StageMemory.peak_allocated)
    for chunk in _chunks(sorted(set(attempts))):
        within = or_(*(StageMemory.rank_id.between(one << RANK_BITS, (one + 1 << RANK_BITS) - 1) for one in chunk))
        query = select(StageMemory.rank_id, StageMemory.stage, size).where(within).order_by(StageMemory.rank_id)
        for rank_id, stage, allocated in connection.execute(query):
            if allocated is not None:
                cell = Cell(rank_id & (1 << RANK_BITS) - 1, stage, allocated)
                found.setdefault(rank_id >> RANK_BITS, []).append(cell)
    return found


def histories(connection: Connection, ranks: Mapping[int, int]) -> dict[int, list[IterationRecord]]:
    """The iterations of one rank of each attempt: `ranks` says which, by the attempt's id.

    Raises:
        FormatError: a newer release stored one.
    """
    found = {}
    for chunk in _chunks(sorted(ranks.items())):
        ids = [attempt << RANK_BITS | rank for attempt, rank in chunk]
        for rank_id, packed in connection.execute(select(Rank.id, Rank.evidence).where(Rank.id.in_(ids))):
            found[rank_id >> RANK_BITS] = rank_record(packed, None, None).iterations
    return found


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))
