"""A count on the terminal while many candidates are prepared; a pipe or a file sees none of it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

MANY = 200
"""Fewer are done before anybody wonders."""
_SECONDS = 0.25
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def counting(words: str) -> Iterator[Callable[[int], None]]:
    """What to call with the count so far: shows `words` with it on stderr, and takes it away at the end."""
    shown_at = 0.0
    is_terminal = sys.stderr.isatty()

    def tell(count: int) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if is_terminal and count >= MANY and now - shown_at >= _SECONDS:
            shown_at = now
            print(f"{_CLEAR}{words.format(count)}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if shown_at:
            print(_CLEAR, end="", file=sys.stderr, flush=True)
