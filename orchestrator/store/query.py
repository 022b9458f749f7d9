"""SQL of a user, which cannot change anything by construction, and questions that have a name."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from orchestrator.config.errors import UsageError
from orchestrator.store.database import Store

_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33}  # 33 is SQLITE_RECURSIVE
)
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension"})


@dataclass(frozen=True)
class Answer:
    """What a query found."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True)
class Question:
    """A query with a name."""

    name: str
    about: str
    sql: str
    needs_study: bool = False


OOM_BY_STAGE = Question(
    "oom-by-stage",
    "where trials ran out of memory: label, stage, how many, on how many ranks, how early",
    """
    SELECT label, stage, COUNT(*) AS trials, COUNT(DISTINCT rank) AS different_ranks,
        MIN(iteration) AS fewest_iterations, MAX(iteration) AS most_iterations, MIN(modules) AS for_example
    FROM v_trials
    WHERE label LIKE 'OOM-%' AND (CAST(:study AS TEXT) IS NULL OR study = :study)
    GROUP BY label, stage ORDER BY trials DESC, label, stage
    """,
)

HOT_RANKS = Question(
    "hot-ranks",
    "which ranks of a study hold most: in how many trials each is the hottest, and its peaks in bytes",
    """
    SELECT r.rank AS rank, COUNT(*) AS trials,
        SUM(CASE WHEN r.rank = v.peak_allocated_rank THEN 1 ELSE 0 END) AS hottest_in,
        MAX(r.peak_allocated) AS largest_peak, CAST(AVG(r.peak_allocated) AS BIGINT) AS mean_peak,
        MIN(r.peak_allocated) AS smallest_peak,
        MAX(CASE WHEN r.rank = v.peak_allocated_rank THEN v.peak_allocated_stage END) AS stage_when_hottest
    FROM v_trials v JOIN v_ranks r ON r.attempt_id = v.attempt_id
    WHERE v.study = :study AND r.peak_allocated IS NOT NULL
    GROUP BY r.rank ORDER BY hottest_in DESC, largest_peak DESC, r.rank
    """,
    needs_study=True,
)

QUESTIONS = {question.name: question for question in (OOM_BY_STAGE, HOT_RANKS)}


def ask(store: Store, sql: str, parameters: Mapping[str, Any] | None = None) -> Answer:
    """Run one SELECT.

    On SQLite the file is open read-only and an authorizer refuses everything but reading; on PostgreSQL the
    transaction is read-only and the statement has to be one that a cursor can be declared for.

    Raises:
        UsageError: it is no SELECT, or the database does not understand it.
        EnvironmentFailure: the database is locked, ...
    """
    statement = sql.strip().rstrip(";").strip()
    if not statement:
        raise UsageError("There is no SQL to run.")
    with store.reading() as connection:
        try:
            if store.is_sqlite:
                return _ask_sqlite(connection, statement, parameters)
            return _ask_postgresql(connection, statement, parameters)
        except DBAPIError as error:
            raise UsageError(f"The query failed: {' '.join(str(error.orig).split())}") from error
        except sqlite3.Error as error:
            raise UsageError(f"The query failed: {error}.{_hint(error)}") from error


def question(store: Store, asked: Question, study: str | None) -> Answer:
    """Answer a question that has a name."""
    return ask(store, asked.sql, {"study": study})


def _ask_sqlite(connection: Connection, statement: str, parameters: Mapping[str, Any] | None) -> Answer:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    raw.set_authorizer(_authorize)
    try:
        cursor = raw.execute(statement, dict(parameters or {}))
        if cursor.description is None:
            raise UsageError("Only a SELECT can be asked.")
        return Answer(tuple(column[0] for column in cursor.description), cursor.fetchall())
    except sqlite3.ProgrammingError as error:
        raise UsageError(f"The query failed: {error}.") from error
    finally:
        raw.set_authorizer(None)


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _ask_postgresql(connection: Connection, statement: str, parameters: Mapping[str, Any] | None) -> Answer:
    import psycopg

    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    if parameters:
        statement = statement.replace("%", "%%")
    for name in parameters or {}:
        statement = statement.replace(f":{name}", f"%({name})s")
    try:
        with raw.cursor(name="asked") as cursor:
            cursor.execute(statement.encode(), dict(parameters) if parameters else None)
            columns = tuple(column.name for column in cursor.description or ())
            return Answer(columns, [tuple(row) for row in cursor.fetchall()])
    except psycopg.Error as error:
        raise UsageError(f"The query failed: {' '.join(str(error).split())}") from error


def _hint(error: sqlite3.Error) -> str:
    text = str(error)
    if "not authorized" in text or "prohibited" in text:
        return " A query can only read: one SELECT over the views."
    if "no such table" in text:
        return " `query` without arguments lists the views."
    if "no such column" in text:
        return " `SELECT * FROM VIEW LIMIT 1` shows a view's columns."
    return ""


def view_columns(store: Store, views: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The columns of views, by view."""
    return {view: ask(store, f"SELECT * FROM {view} LIMIT 0").columns for view in views}
