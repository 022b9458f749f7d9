"""Brings a database to the newest schema, in one transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from orchestrator.store.schema import check_schema, stored_revision
from orchestrator.store.views import create_statements, drop_statements

_LOCK = 0x7265636F
"""The advisory lock of PostgreSQL under which one process migrates at a time."""


def upgrade(connection: Connection, where: str) -> tuple[str, str]:
    """Migrate inside the caller's transaction; the revisions before and after.

    Views are dropped first and made anew, so that a migration may change what they stand on.

    Raises:
        SchemaMismatch: the database is of a newer release, or not one of ours.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    before = stored_revision(connection)
    if check_schema(before, where, write=True):
        for statement in drop_statements():
            connection.exec_driver_sql(statement)
        command.upgrade(config(connection), "head")
        for statement in create_statements():
            connection.exec_driver_sql(statement)
    return before, stored_revision(connection)


def config(connection: Connection) -> Config:
    """Alembic's configuration, without a file: the scripts ship inside the package."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings
