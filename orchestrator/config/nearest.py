"""The right name that a misspelt one is nearest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name most like `name`, or None where nothing is alike."""
    folded = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean X?`, or the whole list where nothing is alike."""
    known = sorted(set(names))
    match = nearest(name, known)
    if match is not None:
        return f"; did you mean {match}?"
    return f"; there is {', '.join(known)}" if known else ""
