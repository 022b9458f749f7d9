"""Which schema a database has, asked by a plain query so that opening needs no Alembic."""

from __future__ import annotations

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from orchestrator.store.failures import SchemaMismatch, StoreMissing

REVISIONS = ("0001", "0002")
"""Every revision in `migrations/versions`, oldest first."""

EMPTY = "empty"
"""A database without any table."""

FOREIGN = "foreign"
"""A database whose tables are not ours."""


def stored_revision(connection: Connection) -> str:
    """The revision that a database is at, or `EMPTY`, or `FOREIGN`."""
    tables = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if connection.dialect.name == "sqlite"
        else "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = current_schema()"
    )
    names = set(connection.execute(text(tables)).scalars())
    if not names:
        return EMPTY
    if not {"alembic_version", "studies", "trials"} <= names:
        return FOREIGN
    try:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except DBAPIError:
        return FOREIGN
    return str(found) if found else FOREIGN


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
