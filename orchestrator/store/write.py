"""Inserts and updates, each safe to repeat: the same evidence gives the same rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update
from sqlalchemy.sql.compiler import SQLCompiler

from orchestrator.records.spec import AttemptRecord, Batch
from orchestrator.store.clean import clean, clean_text
from orchestrator.store.models import (
    RANK_BITS,
    STATE_ENDED,
    Attempt,
    Base,
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
from orchestrator.store.models import Batch as BatchRow
from orchestrator.store.prepare import PreparedAttempt
from orchestrator.store.rank_rows import ITERATION_COLUMNS, STAGE_COLUMNS
from orchestrator.store.requested import row_of_spec, trial_row
from orchestrator.vocabulary import is_result

Row = dict[str, Any]

STATUS_BATCH = "batch"
_MOST_PARAMETERS = 500
"""Values in one IN list: SQLite before 3.32 allows 999."""


def table_of(model: type[Base]) -> Table:
    table = model.__table__
    assert isinstance(table, Table)
    return table


def insert_missing(connection: Connection, model: type[Base], rows: Sequence[Row]) -> None:
    """Insert the rows whose keys are new, in one statement that two writers may run at once."""
    if rows:
        statement: Any
        if connection.dialect.name == "sqlite":
            from sqlalchemy.dialects import sqlite

            statement = sqlite.insert(table_of(model))
        else:
            from sqlalchemy.dialects import postgresql  # imports every driver's dialect: only where it is used

            statement = postgresql.insert(table_of(model))
        connection.execute(statement.on_conflict_do_nothing(), rows)


def pieces(values: Iterable[Any]) -> Iterable[list[Any]]:
    """Lists short enough for one IN."""
    known = list(values)
    for at in range(0, len(known), _MOST_PARAMETERS):
        yield known[at : at + _MOST_PARAMETERS]


def study_id(connection: Connection, name: str, created_at: float | None = None) -> int:
    """The study of this name, made where it is new."""
    name = clean_text(name)
    query = select(Study.id).where(Study.name == name)
    found = connection.execute(query).scalar()
    if found is None:
        insert_missing(connection, Study, [{"name": name, "created_at": created_at or time.time(), "settings": None}])
        found = connection.execute(query).scalar_one()
    return found


def write_batch(connection: Connection, batch: Batch, folder: str, user: str | None, origin: str) -> None:
    """A batch, its places, and its trials as members of its study."""
    study = study_id(connection, batch.study, batch.created_at)
    row = {
        "id": batch.batch,
        "study_id": study,
        "created_at": batch.created_at,
        "user": user,
        "folder": folder,
        "launcher": clean(batch.launcher),
        "parallel_trials": batch.parallel_trials,
        "max_attempts": batch.max_attempts,
    }
    insert_missing(connection, BatchRow, [row])
    connection.execute(update(BatchRow).where(BatchRow.id == batch.batch).values(**row))
    insert_missing(connection, Trial, [row_of_spec(trial, trial.repeat, origin) for trial in batch.trials])
    connection.execute(delete(BatchTrial).where(BatchTrial.batch_id == batch.batch))
    if batch.trials:
        connection.execute(
            insert(BatchTrial),
            [
                {
                    "batch_id": batch.batch,
                    "position": position,
                    "trial_id": trial.trial,
                    "name": clean_text(trial.name),
                    "role": trial.role,
                }
                for position, trial in enumerate(batch.trials)
            ],
        )
    add_members(connection, study, [(trial.trial, trial.name, trial.role) for trial in batch.trials])


def write_driver_state(connection: Connection, batch: str, state: Row) -> None:
    """What a batch's driver last said of itself."""
    job = state.get("job")
    values = {
        "state": clean_text(str(state.get("state"))),
        "host": clean_text(str(state.get("host"))),
        "heartbeat": state["heartbeat"] if isinstance(state.get("heartbeat"), float) else None,
        "job": clean(job) if isinstance(job, dict) else None,
    }
    connection.execute(update(BatchRow).where(BatchRow.id == batch).values(**values))


def add_members(connection: Connection, study: int, trials: Iterable[tuple[str, str, str]]) -> None:
    """Add trials to a study that no plan told of, after those it has."""
    known = set(connection.execute(select(StudyTrial.trial_id).where(StudyTrial.study_id == study)).scalars())
    rows: dict[str, Row] = {}
    for trial, name, role in trials:
        if trial not in known and trial not in rows:
            rows[trial] = {
                "study_id": study,
                "trial_id": trial,
                "name": clean_text(name),
                "position": len(known) + len(rows),
                "role": role,
                "status": STATUS_BATCH,
                "reasons": None,
            }
    insert_missing(connection, StudyTrial, list(rows.values()))


def write_attempts(
    connection: Connection, prepared: Sequence[PreparedAttempt], user: str | None, origin: str
) -> tuple[int, int]:
    """Write attempts whole, instead of what was known of them; how many were new, and how many known."""
    if not prepared:
        return 0, 0
    _write_contents(connection, Software, prepared, "software")
    _write_contents(connection, Effective, prepared, "effective")
    insert_missing(connection, Trial, [_trial_of(one, origin) for one in prepared])
    places = _places(connection, [one.attempt for one in prepared])
    uids = [one.uid for one in prepared]
    known = _ids(connection, uids)
    fresh: list[Row] = []
    changed: list[Row] = []
    for one in prepared:
        study, batch = places[(one.attempt.study, one.attempt.batch)]
        row = {
            **one.columns,
            "uid": one.uid,
            "trial_id": one.attempt.trial,
            "batch_id": batch,
            "study_id": study,
            "user": user,
        }
        (changed if one.uid in known else fresh).append(row)
    insert_missing(connection, Attempt, [{**row, "decides": False} for row in fresh])
    if changed:
        names = [name for name in changed[0] if name != "uid"]
        statement = (
            update(table_of(Attempt))
            .where(Attempt.uid == bindparam("key"))
            .values({name: bindparam(f"new_{name}") for name in names})
        )
        connection.execute(
            statement, [{"key": row["uid"], **{f"new_{name}": row[name] for name in names}} for row in changed]
        )
    ids = _ids(connection, uids)
    for old in known.values():
        delete_ranks(connection, old)
    _write_ranks(connection, [(ids[one.uid], one) for one in prepared])
    mark_deciding(connection, {one.attempt.trial for one in prepared})
    return len(fresh), len(changed)


def delete_ranks(connection: Connection, attempt: int) -> None:
    """Remove the ranks of an attempt and what belongs to them."""
    first, last = attempt << RANK_BITS, (attempt + 1 << RANK_BITS) - 1
    for model in (StageMemory, Iteration):
        connection.execute(delete(model).where(model.rank_id.between(first, last)))
    connection.execute(delete(Rank).where(Rank.id.between(first, last)))


def mark_deciding(connection: Connection, trials: Iterable[str]) -> None:
    """Let the newest attempt with a result, else the newest, speak for each trial."""
    for some in pieces(sorted(set(trials))):
        query = select(
            Attempt.id, Attempt.trial_id, Attempt.label, Attempt.state, Attempt.started_at, Attempt.decides
        ).where(Attempt.trial_id.in_(some))
        best: dict[str, tuple[bool, float, int]] = {}
        speaking: set[int] = set()
        for row in connection.execute(query):
            result = row.state == STATE_ENDED and row.label is not None and is_result(row.label)
            best[row.trial_id] = max(best.get(row.trial_id, (False, 0.0, 0)), (result, row.started_at or 0.0, row.id))
            if row.decides:
                speaking.add(row.id)
        chosen = {place[2] for place in best.values()}
        changes = [{"key": one, "new": False} for one in speaking - chosen]
        changes += [{"key": one, "new": True} for one in chosen - speaking]
        if changes:
            connection.execute(
                update(table_of(Attempt)).where(Attempt.id == bindparam("key")).values(decides=bindparam("new")),
                changes,
            )


def _write_contents(connection: Connection, model: type[Base], prepared: Sequence[PreparedAttempt], field: str) -> None:
    contents: dict[str, Row] = {}
    for one in prepared:
        contents |= getattr(one, field)
    insert_missing(connection, model, [{"hash": key, "content": content} for key, content in contents.items()])


def _trial_of(one: PreparedAttempt, origin: str) -> Row:
    attempt = one.attempt
    if one.spec is not None:
        return row_of_spec(one.spec, attempt.repeat, origin)
    return trial_row(
        attempt.trial, {}, trainer=attempt.trainer, world_size=attempt.world_size, repeat=attempt.repeat, origin=origin
    )


def _places(connection: Connection, attempts: Sequence[AttemptRecord]) -> dict[tuple[str, str], tuple[int, str | None]]:
    """The study and batch of attempts, by both names. A batch whose own file is not there gets a row from them."""
    places: dict[tuple[str, str], tuple[int, str | None]] = {}
    members: dict[int, list[tuple[str, str, str]]] = {}
    for attempt in attempts:
        key = (attempt.study, attempt.batch)
        if key not in places:
            study = study_id(connection, attempt.study, attempt.started_at)
            places[key] = (study, attempt.batch or None)
            if attempt.batch:
                insert_missing(connection, BatchRow, [_batch_of(attempt, study)])
        members.setdefault(places[key][0], []).append((attempt.trial, attempt.name, attempt.role))
    for study, trials in members.items():
        add_members(connection, study, trials)
    return places


def _batch_of(attempt: AttemptRecord, study: int) -> Row:
    return {
        "id": attempt.batch,
        "study_id": study,
        "created_at": attempt.started_at,
        "user": None,
        "folder": "",
        "launcher": {"kind": attempt.launcher},
        "parallel_trials": 1,
        "max_attempts": 1,
    }


def _ids(connection: Connection, uids: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in pieces(uids):
        for row in connection.execute(select(Attempt.uid, Attempt.id).where(Attempt.uid.in_(some))):
            found[row.uid] = row.id
    return found


def _write_ranks(connection: Connection, attempts: Sequence[tuple[int, PreparedAttempt]]) -> None:
    ranks: list[tuple[Any, ...]] = []
    stages: list[tuple[Any, ...]] = []
    iterations: list[tuple[Any, ...]] = []
    columns: tuple[str, ...] = ()
    for attempt, one in attempts:
        for rank in one.ranks:
            key = attempt << RANK_BITS | rank.rank
            columns = ("id", "attempt_id", *rank.row)
            ranks.append((key, attempt, *rank.row.values()))
            stages += [(key, *row) for row in rank.stages]
            iterations += [(key, *row) for row in rank.iterations]
    _insert_many(connection, Rank, columns, ranks)
    _insert_many(connection, StageMemory, ("rank_id", *STAGE_COLUMNS), stages)
    _insert_many(connection, Iteration, ("rank_id", *ITERATION_COLUMNS), iterations)


def _insert_many(
    connection: Connection, model: type[Base], columns: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> None:
    """Rows of numbers, text and bytes, straight to the driver: the statement is compiled, the values are not touched.

    Half the time of an ordinary insert of as many rows, measured on stage rows.
    """
    if not rows:
        return
    compiled = insert(table_of(model)).compile(dialect=connection.dialect, column_keys=list(columns))
    assert isinstance(compiled, SQLCompiler)
    order = compiled.positiontup
    if order is None:
        values: Any = [dict(zip(columns, row, strict=True)) for row in rows]
    elif tuple(order) == columns:
        values = rows
    else:
        values = list(map(itemgetter(*(columns.index(name) for name in order)), rows))
    connection.exec_driver_sql(str(compiled), values)
