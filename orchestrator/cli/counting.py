"""What a terminal sees while candidates are prepared, a count of many and why it takes long; a pipe or a file sees
none of it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

MANY = 200
"""Fewer are done before anybody wonders."""
IMPORTS = "checking with the framework itself, which is imported for that; what it answers is kept for the next time"
_SECONDS = 0.25
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def saying_if_slow(words: str, seconds: float = 3.0) -> Iterator[None]:
    """Say `words` once on a terminal where this takes longer than that."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(seconds, lambda: print(words, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
