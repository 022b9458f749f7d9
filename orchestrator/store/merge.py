"""Takes another database in: what is new there comes here, what is known stays, whatever the order of merging."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import StatementError

from orchestrator.store.database import Store
from orchestrator.store.models import (
    ORIGIN_IMPORTED,
    ORIGIN_MEASURED,
    RANK_BITS,
    Attempt,
    Base,
    Batch,
    BatchTrial,
    Effective,
    Iteration,
    Rank,
    Software,
    StageMemory,
    Study,
    StudyTrial,
    Trial,
)
from orchestrator.store.problem import Problem
from orchestrator.store.write import delete_ranks, insert_missing, mark_deciding, pieces, study_id, table_of

Row = dict[str, Any]

_ATTEMPTS_A_TRANSACTION = 25
_ORIGINS = {ORIGIN_MEASURED: ORIGIN_IMPORTED}


@dataclass
class Merged:
    """What another database brought: attempts that were new here, that it knew more of, and that were known."""

    new: int = 0
    updated: int = 0
    known: int = 0
    trials: int = 0
    studies: list[str] = field(default_factory=list)
    """Names of the studies that it has."""
    problems: list[Problem] = field(default_factory=list)
    """Executions that no column here can hold, as `TRIAL/ATTEMPT`, and why. They hold up nothing else."""


def merge(store: Store, other: Store) -> Merged:
    """Take `other` into `store`. Studies of one name become one; executions are told apart by their identity.

    What was measured there is marked as imported here. An execution that `other` collected later than this one, ended
    or with more ranks, replaces what is here. Safe to repeat and to interrupt: what was merged is known the next time.

    Raises:
        EnvironmentFailure: either database is locked, full, ...
    """
    merged = Merged()
    with other.reading() as source:
        with store.writing() as target:
            studies = _studies(source, target, merged)
            _trials(source, target, merged)
            _batches(source, target, studies)
            _members(source, target, studies)
        ids = list(source.execute(select(Attempt.id).order_by(Attempt.id)).scalars())
        for at in range(0, len(ids), _ATTEMPTS_A_TRANSACTION):
            _some(source, store, ids[at : at + _ATTEMPTS_A_TRANSACTION], studies, merged)
    return merged


def _some(source: Connection, store: Store, ids: Sequence[int], studies: dict[int, int], merged: Merged) -> None:
    """Attempts in one transaction; where one holds what no column can, each on its own, and that one is a problem."""
    before = replace(merged)
    try:
        with store.writing() as target:
            _attempts(source, target, ids, studies, merged)
    except (OverflowError, UnicodeError, StatementError) as error:
        merged.new, merged.updated, merged.known = before.new, before.updated, before.known
        if len(ids) > 1:
            for one in ids:
                _some(source, store, [one], studies, merged)
            return
        row = source.execute(select(Attempt.trial_id, Attempt.number).where(Attempt.id == ids[0])).one()
        said = " ".join(str(getattr(error, "orig", None) or error).split())
        merged.problems.append(Problem(f"{row.trial_id}/{row.number}", f"it cannot be stored: {said}"))


def _all(connection: Connection, model: type[Base]) -> Iterator[Row]:
    for row in connection.execute(select(table_of(model))).mappings():
        yield dict(row)


def _studies(source: Connection, target: Connection, merged: Merged) -> dict[int, int]:
    """Ids of studies here by their ids there."""
    found: dict[int, int] = {}
    for row in _all(source, Study):
        found[row["id"]] = study_id(target, row["name"], row["created_at"])
        merged.studies.append(row["name"])
        if row["settings"] is not None:
            here = Study.id == found[row["id"]]
            target.execute(update(Study).where(here, Study.settings.is_(None)).values(settings=row["settings"]))
    merged.studies.sort()
    return found


def _trials(source: Connection, target: Connection, merged: Merged) -> None:
    before = target.execute(select(func.count()).select_from(Trial)).scalar_one()
    for rows in _slices(_all(source, Trial)):
        insert_missing(target, Trial, [row | {"origin": _ORIGINS.get(row["origin"], row["origin"])} for row in rows])
    merged.trials = target.execute(select(func.count()).select_from(Trial)).scalar_one() - before


def _batches(source: Connection, target: Connection, studies: dict[int, int]) -> None:
    known = set(target.execute(select(Batch.id)).scalars())
    fresh = [row | {"study_id": studies[row["study_id"]]} for row in _all(source, Batch) if row["id"] not in known]
    ids = {row["id"] for row in fresh}
    insert_missing(target, Batch, fresh)
    for rows in _slices(row for row in _all(source, BatchTrial) if row["batch_id"] in ids):
        insert_missing(target, BatchTrial, rows)


def _members(source: Connection, target: Connection, studies: dict[int, int]) -> None:
    """Trials of studies: those new here follow those that are here. What a plan said beats what a batch told."""
    last = {
        row.study_id: row.last
        for row in target.execute(
            select(StudyTrial.study_id, func.max(StudyTrial.position).label("last")).group_by(StudyTrial.study_id)
        )
    }
    members = target.execute(select(StudyTrial.study_id, StudyTrial.trial_id))
    known = {(row.study_id, row.trial_id) for row in members}
    fresh: list[Row] = []
    query = select(table_of(StudyTrial)).order_by(StudyTrial.study_id, StudyTrial.position)
    for found in source.execute(query).mappings():
        row = dict(found) | {"study_id": studies[found["study_id"]]}
        if (row["study_id"], row["trial_id"]) not in known:
            last[row["study_id"]] = last.get(row["study_id"], -1) + 1
            fresh.append(row | {"position": last[row["study_id"]]})
    for rows in _slices(fresh):
        insert_missing(target, StudyTrial, rows)


def _attempts(
    source: Connection, target: Connection, ids: Sequence[int], studies: dict[int, int], merged: Merged
) -> None:
    table = table_of(Attempt)
    there = [dict(row) for row in source.execute(select(table).where(table.c.id.in_(ids))).mappings()]
    here = {
        row.uid: row
        for row in target.execute(
            select(Attempt.uid, Attempt.id, Attempt.state, Attempt.ended_at, Attempt.ranks_recorded).where(
                Attempt.uid.in_([row["uid"] for row in there])
            )
        )
    }
    wanted = [row for row in there if row["uid"] not in here or _tells_more(row, here[row["uid"]])]
    merged.known += len(there) - len(wanted)
    for model, column in ((Software, "software_hash"), (Effective, "effective_hash")):
        _contents(source, target, model, column, [row["id"] for row in wanted])
    moved: dict[int, int] = {}
    for row in wanted:
        values = {key: value for key, value in row.items() if key != "id"} | {"decides": False}
        values["study_id"] = studies.get(row["study_id"])
        known = here.get(row["uid"])
        if known is None:
            moved[row["id"]] = target.execute(insert(Attempt).values(values).returning(Attempt.id)).scalar_one()
            merged.new += 1
        else:
            target.execute(update(Attempt).where(Attempt.id == known.id).values(values))
            delete_ranks(target, known.id)
            moved[row["id"]] = known.id
            merged.updated += 1
    for old, new in moved.items():
        _ranks(source, target, old, new)
    mark_deciding(target, [row["trial_id"] for row in wanted])


def _tells_more(row: Row, known: Any) -> bool:
    """Whether the other database collected an execution later than this one."""
    ended = (row["state"] == "ended", row["ended_at"] or 0.0, row["ranks_recorded"])
    return bool(ended > (known.state == "ended", known.ended_at or 0.0, known.ranks_recorded))


def _contents(
    source: Connection, target: Connection, model: type[Software] | type[Effective], column: str, attempts: list[int]
) -> None:
    wanted: set[str] = set()
    for of_model, key in ((Attempt, Attempt.id), (Rank, Rank.attempt_id)):
        hashes = source.execute(select(getattr(of_model, column)).where(key.in_(attempts)).distinct()).scalars()
        wanted |= {one for one in hashes if one is not None}
    for some in pieces(sorted(wanted)):
        rows = [dict(row) for row in source.execute(select(table_of(model)).where(model.hash.in_(some))).mappings()]
        insert_missing(target, model, rows)


def _ranks(source: Connection, target: Connection, old: int, new: int) -> None:
    first, last = old << RANK_BITS, (old + 1 << RANK_BITS) - 1
    shift = (new - old) << RANK_BITS
    target.execute(delete(Rank).where(Rank.attempt_id == new))
    ranks = [dict(row) for row in source.execute(select(table_of(Rank)).where(Rank.attempt_id == old)).mappings()]
    if ranks:
        target.execute(insert(Rank), [row | {"id": row["id"] + shift, "attempt_id": new} for row in ranks])
    for model in (StageMemory, Iteration):
        rows = source.execute(select(table_of(model)).where(model.rank_id.between(first, last))).mappings()
        for some in _slices(dict(row) | {"rank_id": row["rank_id"] + shift} for row in rows):
            target.execute(insert(model), some)


def _slices(rows: Iterable[Row]) -> Iterator[list[Row]]:
    known = list(rows)
    for at in range(0, len(known), 1000):
        yield known[at : at + 1000]
