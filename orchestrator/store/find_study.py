"""From what a person typed to one study."""

from __future__ import annotations

import difflib

from sqlalchemy import Connection, text

from orchestrator.config.errors import UsageError

_SHOWN = 5


def find_study(connection: Connection, word: str) -> str:
    """The study that `word` names, or begins the name of.

    Raises:
        UsageError: no study, or more than one, is called so.
    """
    names: list[str] = list(connection.execute(text("SELECT name FROM studies ORDER BY name")).scalars())
    if word in names:
        return word
    starts = [name for name in names if name.startswith(word)]
    if len(starts) == 1:
        return starts[0]
    if starts:
        raise UsageError(f"{word!r} is not clear: it may be {listed(starts)}")
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5) or names
    raise UsageError(f"There is no study {word!r}; there is {listed(near)}" if near else "There is no study yet")


def listed(names: list[str]) -> str:
    """The first few of a list of names, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
