"""Opens a database: SQLite in a file, or PostgreSQL by URL, through the same code."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.records import layout
from orchestrator.store.address import parse_url, secrets_of, shown_url, without_secrets
from orchestrator.store.failures import StoreMissing, explained
from orchestrator.store.filesystem import may_use_wal, mounted_type
from orchestrator.store.schema import EMPTY, check_schema, stored_revision
from orchestrator.store.shaped import decoded

__all__ = ["Store", "default_url", "describe", "open_store", "parse_url", "shown_url"]

FILE_NAME = "store.sqlite"
BUSY_SECONDS = 5.0

_WRITES = "orchestrator_writes"


@dataclass(frozen=True)
class Store:
    """An open database. `notes` are what a user should know of how it is kept."""

    engine: Engine
    where: str
    """What to call it in messages: a path, or a URL without anything secret."""
    path: Path | None
    writable: bool
    busy_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def is_sqlite(self) -> bool:
        return self.path is not None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view of the database.

        Raises:
            EnvironmentFailure: as `failures.explained` says.
        """
        with explained(self.where, self.busy_seconds, secrets_of(self.engine.url)), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction: all of it or nothing, also when the process is killed.

        Raises:
            EnvironmentFailure: as `failures.explained` says.
        """
        if not self.writable:
            raise RuntimeError("this store was opened to be read")
        engine = self.engine.execution_options(**{_WRITES: True})
        with explained(self.where, self.busy_seconds, secrets_of(self.engine.url)), engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def default_url(results_dir: Path) -> str:
    """Where the database of a results folder lies unless a user says otherwise: a path, since a URL ends at a `?`."""
    return str(results_dir / FILE_NAME)


def open_store(url: str | Path, *, write: bool = False, busy_seconds: float = BUSY_SECONDS) -> Store:
    """Open a database by URL or by the path of a SQLite file.

    A writer creates it, and upgrades one of an older release; a reader of SQLite cannot change it by any statement.

    Raises:
        StoreMissing: a reader asked for a database that is not there.
        SchemaMismatch: it is of a newer release, or (for a reader) of an older one.
        UsageError: the URL is none that this release can open.
        EnvironmentFailure: it is locked, unreachable, unwritable, or not a database.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        store = _open_sqlite(parsed, write=write, busy_seconds=busy_seconds)
    else:
        store = _open_postgresql(parsed, write=write, busy_seconds=busy_seconds)
    try:
        _check_or_migrate(store)
    except BaseException:
        store.close()
        raise
    return store


def describe(url: str | Path) -> tuple[str, str | None, list[str]]:
    """What it is called, the revision of its schema (None where there is none yet), and what to know of it.

    Raises:
        EnvironmentFailure: it cannot be reached.
    """
    parsed = parse_url(url)
    opener = _open_sqlite if parsed.get_backend_name() == "sqlite" else _open_postgresql
    try:
        store = opener(parsed, write=False, busy_seconds=BUSY_SECONDS)
    except StoreMissing:
        return shown_url(url), None, []
    with store, store.reading() as connection:
        revision = stored_revision(connection)
        notes = []
        if store.is_sqlite:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
            notes.append(f"journal mode {mode}")
    return store.where, None if revision == EMPTY else revision, notes


def _check_or_migrate(store: Store) -> None:
    with store.reading() as connection:
        revision = stored_revision(connection)
    if check_schema(revision, store.where, write=store.writable):
        from orchestrator.store.migrate import upgrade  # Alembic is slow to import and seldom needed

        with store.writing() as connection:
            upgrade(connection, store.where)


def _open_sqlite(url: URL, *, write: bool, busy_seconds: float) -> Store:
    path = Path(url.database or "").expanduser().absolute()
    notes: list[str] = []
    if write:
        _create_private(path)
    elif not path.is_file():
        raise StoreMissing(f"There is no database at {path} yet: run a study, or `collect` an existing results folder.")
    with_wal = may_use_wal(mounted_type(path.resolve()))
    target = path.resolve().as_uri()
    target += f"?mode={'rw' if write else 'ro'}"
    if not write and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        target += "&immutable=1"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(target, uri=True, timeout=busy_seconds, check_same_thread=False)
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA mmap_size=268435456")
        if write:
            connection.execute("PRAGMA cache_size=-65536")
        else:
            connection.execute("PRAGMA query_only=ON")
        return connection

    engine = create_engine("sqlite://", creator=connect, json_deserializer=decoded)
    event.listen(engine, "begin", _begin)
    if write:
        with explained(str(path), busy_seconds):
            mode = _set_journal(engine, with_wal=with_wal)
        if mode != "wal":
            notes.append(
                f"{path}: SQLite's write-ahead log is off (file system {mounted_type(path.resolve()) or 'unknown'}): "
                "readers wait while a collection is being written. Use PostgreSQL for a team."
            )
    return Store(engine, str(path), path, write, busy_seconds, tuple(notes))


def _begin(connection: Connection) -> None:
    # A transaction that will write takes its lock at once: one that read first could not wait for another writer.
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _set_journal(engine: Engine, *, with_wal: bool) -> str:
    """Ask for a write-ahead log, and say what it became: the file keeps the mode."""
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        try:
            cursor.execute(f"PRAGMA journal_mode={'WAL' if with_wal else 'DELETE'}")
            mode = str(next(iter(cursor.fetchone() or [""]))).lower()
        except sqlite3.Error as error:
            raise DBAPIError("PRAGMA journal_mode", None, error) from error
        finally:
            cursor.close()
    finally:
        raw.close()
    if mode == "wal":
        event.listen(engine, "connect", _relax_synchronous)
        engine.dispose()
    return mode


def _relax_synchronous(connection: Any, _record: object) -> None:
    # Safe against a killed process, and against a lost machine as far as the records on disk can be collected again.
    connection.execute("PRAGMA synchronous=NORMAL")


def _create_private(path: Path) -> None:
    try:
        if not path.parent.is_dir():
            layout.make_private_dir(path.parent)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise EnvironmentFailure(
            f"The database {path} cannot be written ({error.strerror}): set results_dir or store.url to a folder "
            "of your own."
        ) from error


def _open_postgresql(url: URL, *, write: bool, busy_seconds: float) -> Store:
    try:
        import psycopg  # noqa: F401 - an optional extra: its absence is explained here
    except ImportError as error:
        raise EnvironmentFailure(
            "PostgreSQL needs its driver: pip install 'recompute-orchestrator[postgres]'."
        ) from error
    options = f"-c lock_timeout={int(busy_seconds * 1000)}"
    if not write:
        options += " -c default_transaction_read_only=on"
    engine = create_engine(url, connect_args={"options": options, "connect_timeout": 10}, pool_pre_ping=True)
    return Store(engine, without_secrets(url), None, write, busy_seconds)
