"""Where a database is: a URL or the path of a file, and what of it may be shown."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from orchestrator.config.errors import UsageError

HIDDEN = "***"

_SHOWN_PARAMETERS = frozenset(
    {
        *("application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "gssencmode", "host"),
        *("hostaddr", "load_balance_hosts", "port", "sslmode", "target_session_attrs", "user"),
    }
)
"""Of a URL's query: those of libpq that hold no secret. Any other value is hidden, also of one misspelt."""

_NO_PATH = re.compile(
    r"[A-Za-z][A-Za-z0-9+.\-]+:/"  # a scheme and too few slashes
    r"|(?:postgres(?:ql)?|sqlite|mysql|mariadb|oracle|mssql)(?:\+\w+)?:"
    r"|(?://)?[^/@]*:.*@"  # a user with a password, and no scheme
    r"|//[^/]*@",
    re.IGNORECASE | re.DOTALL,
)
_NOT_SHOWN = "What was given (not shown, since it may hold a password)"
_SHORTEST_SECRET = 3


def parse_url(url: str | Path) -> URL:
    """The URL of a database; a plain path is a SQLite file.

    Raises:
        UsageError: it cannot be read, names another kind of database, or is a URL mistyped. No secret is said.
    """
    text = str(url)
    if isinstance(url, Path) or "://" not in text:
        if not isinstance(url, Path) and _NO_PATH.match(text):
            raise UsageError(f"{_wrong_url(_NOT_SHOWN)} A file of such a name is ./NAME.")
        return URL.create("sqlite", database=text)
    try:
        parsed = make_url(text)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise UsageError(_wrong_url(_NOT_SHOWN)) from None
    if "@" in (parsed.host or ""):
        raise UsageError("The database's URL has more than one @: write %40 for one in the user's name or password.")
    if backend == "postgres":
        parsed, backend = parsed.set(drivername="postgresql"), "postgresql"
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite" or not parsed.database or parsed.database == ":memory:" or parsed.host:
        raise UsageError(_wrong_url(without_secrets(parsed)))
    return parsed


def shown_url(url: str | Path) -> str:
    """What to call a database in messages: a path, or a URL without anything secret."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return str(Path(parsed.database or "").expanduser().absolute())
    return without_secrets(parsed)


def without_secrets(url: URL) -> str:
    """The URL as text: the password and every query value that could be one are `***`."""
    query = {name: value if name in _SHOWN_PARAMETERS else HIDDEN for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True).replace("%2A%2A%2A", HIDDEN)


def secrets_of(url: URL) -> tuple[str, ...]:
    """What a message of a driver must not repeat: the password, and the query values that are hidden."""
    found = [str(url.password)] if url.password else []
    for name, value in url.query.items():
        if name not in _SHOWN_PARAMETERS:
            found += [value] if isinstance(value, str) else value
    return tuple(sorted((one for one in found if len(one) >= _SHORTEST_SECRET), key=len, reverse=True))


def _wrong_url(shown: str) -> str:
    return (
        f"{shown} is no database that this release can open: give a path, `sqlite:///PATH` "
        "or `postgresql://USER@HOST/DATABASE` as --db, ORCHESTRATOR_DB or store.url."
    )
