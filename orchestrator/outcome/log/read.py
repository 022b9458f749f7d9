"""Reading whole logs, with a second process where one is large."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.outcome.log.account import Account
from orchestrator.outcome.log.scan import Scanner
from orchestrator.outcome.log.source import STDIN, Block, blocks, is_plain

PARALLEL_FROM = 64 * 2**20
"""Bytes from which a plain file is read by two processes."""
_OVERLAP = 2**20
"""Bytes before its half that the second process reads too, so that a traceback across the middle is whole."""


def read_logs(paths: Sequence[str]) -> list[Account]:
    """An account of each log, in the given order; `-` is standard input.

    Raises:
        UnreadableLogError: one is absent or cannot be decompressed here.
    """
    return [_read(path) for path in paths]


def read_text(text: str | bytes, file: str = STDIN) -> Account:
    """An account of a log that is in memory."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    scanner = Scanner(file)
    scanner.feed(Block(data, 0, 1))
    return scanner.end()


def _read(path: str) -> Account:
    size = Path(path).stat().st_size if is_plain(path) else 0
    if size < PARALLEL_FROM or (os.cpu_count() or 1) < 2:
        return read_part(path, 0, None, size or None)
    from concurrent.futures import ProcessPoolExecutor  # large files only
    from multiprocessing import get_context

    middle = size // 2
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        second = pool.submit(read_part, path, middle, None, size)
        account = read_part(path, 0, middle, size)
        account.extend(second.result())
    return account


def read_part(path: str, start: int, end: int | None, size: int | None) -> Account:
    """An account of the lines of a log that begin from `start` on and before `end`; `size` is that of the file."""
    scanner = Scanner(path, size)
    if start:
        before = list(blocks(path, max(0, start - _OVERLAP), start))
        lines = sum(block.data.count(b"\n") for block in before)
        for block in before:
            scanner.warm(replace(block, line=block.line - lines))
    for block in blocks(path, start, end):
        scanner.feed(block)
    return scanner.end(whole=end is None)
