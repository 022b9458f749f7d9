"""Takes another database into this one: every execution once, whichever database it is known from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.rows import ORIGIN_IMPORTED, ORIGIN_MEASURED

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from orchestrator.store.database import Store
    from orchestrator.store.models import Base

_ATTEMPTS_A_TRANSACTION = 50
_CHUNK = 500
_STATE_ENDED = "ended"


@dataclass
class Merged:
    """What a merge brought. `known` executions were here already."""

    new: int = 0
    known: int = 0
    trials: int = 0
    studies: list[str] = field(default_factory=list)


def merge(target: Store, source: Store) -> Merged:
    """Copy what `source` has and `target` lacks. Safe to repeat and to interrupt; `source` is only read.

    Executions are told apart by their uid, trials by their id, studies by their name. An execution that had not ended
    when the target learnt of it is replaced by one that has.

    Raises:
        EnvironmentFailure: one of the databases is locked, full, of another schema.
    """
    merged = Merged()
    with source.reading() as there:
        with target.writing() as here:
            studies = _merge_studies(here, there, merged)
            _merge_trials(here, there, studies, merged)
        for chunk in _chunks(_uids(there), _ATTEMPTS_A_TRANSACTION):
            with target.writing() as here:
                _merge_attempts(here, there, chunk, studies, merged)
    return merged


def _merge_studies(here: Connection, there: Connection, merged: Merged) -> dict[int, int]:
    """Studies by name; the source's number of each, and the target's."""
    from sqlalchemy import select

    from orchestrator.store.models import Study
    from orchestrator.store.write import insert_missing

    found = [dict(row) for row in there.execute(select(Study.__table__)).mappings()]
    insert_missing(here, Study, [{key: value for key, value in row.items() if key != "id"} for row in found])
    numbers = {name: number for number, name in here.execute(select(Study.id, Study.name))}
    merged.studies = sorted(row["name"] for row in found)
    return {row["id"]: numbers[row["name"]] for row in found}


def _merge_trials(here: Connection, there: Connection, studies: dict[int, int], merged: Merged) -> None:
    """Trials, and their places in studies and batches. What was measured elsewhere is marked as imported."""
    from sqlalchemy import func, select

    from orchestrator.store.models import Batch, BatchTrial, StudyTrial, Trial
    from orchestrator.store.write import insert_missing

    before = here.execute(select(func.count()).select_from(Trial)).scalar_one()
    for rows in _pages(there, Trial):
        origin = {ORIGIN_MEASURED: ORIGIN_IMPORTED}
        insert_missing(here, Trial, [{**row, "origin": origin.get(row["origin"], row["origin"])} for row in rows])
    merged.trials = here.execute(select(func.count()).select_from(Trial)).scalar_one() - before
    for rows in _pages(there, StudyTrial):
        insert_missing(here, StudyTrial, [{**row, "study_id": studies[row["study_id"]]} for row in rows])
    for rows in _pages(there, Batch):
        insert_missing(here, Batch, [{**row, "study_id": studies[row["study_id"]]} for row in rows])
    for rows in _pages(there, BatchTrial):
        insert_missing(here, BatchTrial, rows)


def _merge_attempts(
    here: Connection, there: Connection, uids: Sequence[str], studies: dict[int, int], merged: Merged
) -> None:
    from sqlalchemy import delete, select

    from orchestrator.store.models import Attempt
    from orchestrator.store.write import delete_ranks, insert_missing, mark_deciding

    known = {
        row.uid: row
        for row in here.execute(select(Attempt.uid, Attempt.id, Attempt.state).where(Attempt.uid.in_(uids)))
    }
    fresh = []
    for row in there.execute(select(Attempt.__table__).where(Attempt.uid.in_(uids))).mappings():
        old = known.get(row["uid"])
        if old is not None and (old.state == _STATE_ENDED or row["state"] != _STATE_ENDED):
            merged.known += 1
            continue
        if old is not None:
            delete_ranks(here, old.id)
            here.execute(delete(Attempt).where(Attempt.id == old.id))
        fresh.append(dict(row))
    if not fresh:
        return
    _merge_contents(here, there, fresh)
    rows = [
        {**row, "study_id": studies.get(row["study_id"]), "decides": False}
        for row in ({key: value for key, value in row.items() if key != "id"} for row in fresh)
    ]
    insert_missing(here, Attempt, rows)
    written = select(Attempt.uid, Attempt.id).where(Attempt.uid.in_([row["uid"] for row in fresh]))
    numbers = {row.uid: row.id for row in here.execute(written)}
    _copy_ranks(here, there, {row["id"]: numbers[row["uid"]] for row in fresh})
    mark_deciding(here, {row["trial_id"] for row in fresh})
    merged.new += len(fresh)


def _merge_contents(here: Connection, there: Connection, attempts: Iterable[dict[str, Any]]) -> None:
    """Software and effective configurations that attempts and their ranks point to."""
    from sqlalchemy import select

    from orchestrator.store.models import Effective, Rank, Software
    from orchestrator.store.write import insert_missing

    for model, column in ((Software, "software_hash"), (Effective, "effective_hash")):
        hashes = {row[column] for row in attempts}
        for chunk in _chunks([row["id"] for row in attempts], _CHUNK):
            hashes |= set(there.execute(select(getattr(Rank, column)).where(Rank.attempt_id.in_(chunk))).scalars())
        for chunk in _chunks(sorted(key for key in hashes if key), _CHUNK):
            found = there.execute(select(model.__table__).where(model.hash.in_(chunk))).mappings()
            insert_missing(here, model, [dict(row) for row in found])


def _copy_ranks(here: Connection, there: Connection, numbers: dict[int, int]) -> None:
    """Ranks and what belongs to them, under the numbers that their attempts have here."""
    from sqlalchemy import insert, select

    from orchestrator.store.models import RANK_BITS, Iteration, Rank, StageMemory

    for old, new in numbers.items():
        shift = (new - old) << RANK_BITS
        ranks = [dict(row) for row in there.execute(select(Rank.__table__).where(Rank.attempt_id == old)).mappings()]
        if not ranks:
            continue
        here.execute(insert(Rank), [{**row, "id": row["id"] + shift, "attempt_id": new} for row in ranks])
        first, last = old << RANK_BITS, (old + 1 << RANK_BITS) - 1
        for model in (StageMemory, Iteration):
            children = there.execute(select(model.__table__).where(model.rank_id.between(first, last))).mappings()
            rows = [{**row, "rank_id": row["rank_id"] + shift} for row in children]
            if rows:
                here.execute(insert(model), rows)


def _uids(there: Connection) -> list[str]:
    from sqlalchemy import select

    from orchestrator.store.models import Attempt

    return list(there.execute(select(Attempt.uid).order_by(Attempt.id)).scalars())


def _pages(there: Connection, model: type[Base]) -> Iterable[list[dict[str, Any]]]:
    from sqlalchemy import select

    for page in there.execute(select(model.__table__)).mappings().partitions(_CHUNK):
        yield [dict(row) for row in page]


def _chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
