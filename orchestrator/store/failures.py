"""What a database refuses, in words for users."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError

from orchestrator.config.errors import EnvironmentFailure


class StoreMissing(EnvironmentFailure):
    """There is no database yet."""


class StoreLocked(EnvironmentFailure):
    """Another process is writing, and did not stop within the busy timeout."""


class SchemaMismatch(EnvironmentFailure):
    """The database has another schema than this release."""


@contextmanager
def explained(where: str, busy_seconds: float, secrets: Sequence[str] = ()) -> Iterator[None]:
    """Turn a database's refusal into one sentence that names the database, and repeats none of its `secrets`.

    Raises:
        EnvironmentFailure: locked, full, read-only, damaged, unreachable.
    """
    try:
        yield
    except DBAPIError as error:
        said = _without(secrets, str(error.orig))
        failure = _explain(said, where, busy_seconds)
        if failure is None and (isinstance(error, OperationalError) or said != str(error.orig)):
            failure = EnvironmentFailure(f"The database {where} failed: {' '.join(said.split())}")
        if failure is None:
            raise
        raise failure from error
    except sqlite3.Error as error:  # while a connection is made, before SQLAlchemy has it
        failure = _explain(str(error), where, busy_seconds)
        raise failure or EnvironmentFailure(f"The database {where} failed: {error}.") from error


def _without(secrets: Sequence[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _explain(text: str, where: str, busy_seconds: float) -> EnvironmentFailure | None:
    if "database is locked" in text or "database table is locked" in text or "lock timeout" in text:
        return StoreLocked(
            f"The database is locked: {where} is being written by another process and did not become free within "
            f"{busy_seconds:g} s. Run the command again, or end the other process."
        )
    if "database or disk is full" in text or "No space left" in text:
        return EnvironmentFailure(f"The disk that holds {where} is full: nothing was lost; free some space and retry.")
    if "disk I/O error" in text:
        return EnvironmentFailure(f"{where} cannot be read or written ({text}): its disk may be full, or gone.")
    if "permission denied" in text or "must be owner" in text:
        return EnvironmentFailure(f"{where}: {' '.join(text.split())}. Ask its owner for the right to write.")
    if "read-only transaction" in text:
        return EnvironmentFailure(f"{where} was opened to be read, and cannot be written.")
    if "readonly database" in text or "unable to open database file" in text:
        return EnvironmentFailure(f"{where} cannot be opened or written: check the permissions of it and its folder.")
    if "not a database" in text or "malformed" in text:
        return EnvironmentFailure(
            f"{where} is not a SQLite database or is damaged. It can be rebuilt: move it away and run `collect`."
        )
    return None
