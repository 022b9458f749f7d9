"""Which files of a results folder have changed since they were collected."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records import layout

READER = 1
"""Raised when a release reads more out of the same files: they are then collected again."""

_SETTLED_SECONDS = 2.0
"""A folder changed less than this before it was looked at may change again within the same tick of its clock."""

PLANS = "plans"


@dataclass(frozen=True)
class Seen:
    """A file or folder as it is now."""

    path: str
    stamp: int | None
    signature: str


def changed_attempts(results_dir: Path, known: Mapping[str, Seen], now: float) -> Iterator[tuple[Seen, bool]]:
    """The attempts whose files changed (True), and those that only settled (False).

    Records replace each other by rename, which changes their folder's time: an attempt whose folder has the time it
    had when it was collected costs one `stat`. `now` is unix seconds, `known` what was seen before, by path.
    """
    for trial in _folders(str(layout.runs_dir(results_dir))):
        for attempt in _folders(trial.path):
            if not attempt.name.isdecimal():
                continue
            before = known.get(attempt.path)
            changed_at = attempt.stat(follow_symlinks=False).st_mtime_ns
            if before is not None and before.stamp == changed_at and before.signature.startswith(f"{READER}:"):
                continue
            seen = Seen(attempt.path, _settled(changed_at, now), _signature(attempt.path))
            if before is None or before.signature != seen.signature:
                yield seen, True
            elif before.stamp != seen.stamp:
                yield seen, False


def changed_files(paths: list[Path], known: Mapping[str, Seen]) -> Iterator[Seen]:
    """The files that are new or have another time or size."""
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        seen = Seen(str(path), None, f"{READER}:{status.st_mtime_ns}:{status.st_size}")
        before = known.get(seen.path)
        if before is None or before.signature != seen.signature:
            yield seen


def batch_files(results_dir: Path) -> list[Path]:
    return [Path(entry.path) / layout.BATCH_FILE for entry in _folders(str(results_dir / "batches"))]


def driver_files(results_dir: Path) -> list[Path]:
    """What drivers say of themselves; absent where one has not begun."""
    return [Path(entry.path) / "driver.json" for entry in _folders(str(results_dir / "batches"))]


def plan_files(results_dir: Path) -> list[Path]:
    folder = results_dir / PLANS
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith(".")) if folder.is_dir() else []


def _folders(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted((e for e in entries if e.is_dir(follow_symlinks=False)), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _settled(changed_ns: int, now: float) -> int | None:
    return changed_ns if now - changed_ns / 1e9 > _SETTLED_SECONDS else None


def _signature(folder: str) -> str:
    digest = hashlib.sha256()
    with os.scandir(folder) as entries:
        files = sorted(
            (entry.name, status.st_mtime_ns, status.st_size)
            for entry in entries
            if entry.name.endswith(".json") and not entry.name.startswith(".")
            for status in (entry.stat(follow_symlinks=False),)
        )
    digest.update(repr(files).encode("utf-8", "backslashreplace"))
    return f"{READER}:{digest.hexdigest()[:24]}"
