"""Which schema a database has, asked by a plain query so that opening needs no Alembic."""

from __future__ import annotations

import sqlite3

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from orchestrator.store.failures import SchemaMismatch, StoreMissing

REVISIONS = ("0001", "0002", "0003")
"""Every revision in `migrations/versions`, oldest first."""

EMPTY = "empty"
"""A database without any table."""

FOREIGN = "foreign"
"""A database whose tables are not ours."""


def stored_revision(connection: Connection) -> str:
    """The revision that a database is at, or `EMPTY`, or `FOREIGN`.

    Raises:
        DBAPIError, sqlite3.Error: it cannot be read, or its file is damaged.
    """
    tables = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if connection.dialect.name == "sqlite"
        else "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = current_schema()"
    )
    names = set(connection.execute(text(tables)).scalars())
    if not names:
        return EMPTY
    found = None
    if {"alembic_version", "studies", "trials"} <= names:
        try:
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        except DBAPIError:
            if connection.dialect.name != "sqlite":
                return FOREIGN
    if found:
        return str(found)
    _refuse_damaged(connection)
    return FOREIGN


def _refuse_damaged(connection: Connection) -> None:
    """A file of which pages are overwritten may list other tables than it had, or its version no more."""
    if connection.dialect.name == "sqlite":
        answer = str(connection.execute(text("PRAGMA quick_check(1)")).scalar())
        if answer != "ok":
            raise sqlite3.DatabaseError(f"database disk image is malformed: {answer}")


def check_schema(revision: str, where: str, *, write: bool) -> bool:
    """Whether a writer has to upgrade.

    Raises:
        SchemaMismatch: this release cannot use the database, with what would help.
    """
    if revision == FOREIGN:
        raise SchemaMismatch(f"{where} holds other tables than this program's: give another database with --db.")
    if revision == REVISIONS[-1]:
        return False
    if revision != EMPTY and revision not in REVISIONS:
        raise SchemaMismatch(
            f"{where} was written by a newer release: its schema is {revision}, and this release knows up to "
            f"{REVISIONS[-1]}. Upgrade recompute-orchestrator to use it."
        )
    if not write and revision == EMPTY:
        raise StoreMissing(f"{where} is still empty: run a study, or `collect` an existing results folder.")
    if not write:
        raise SchemaMismatch(
            f"{where} has the older schema {revision}; this release reads {REVISIONS[-1]}. "
            "Its owner can bring it up to date with `db upgrade`."
        )
    return True
