"""`logs`: what a rank printed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import Answering, add_results_flag, answer
from orchestrator.config.errors import NothingQualifies, UsageError
from orchestrator.records import layout
from orchestrator.report.text import counted, visible_lines

if TYPE_CHECKING:
    from orchestrator.store.detail import AttemptDetail

_POLL_SECONDS = 0.3


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "logs",
        help="what a rank printed: the first that failed, or the one you name; -f follows",
        description="Prints a rank's log: of the newest attempt, and of the rank that failed first, or rank 0. On a "
        "terminal, what would act on it (colours, cursor movements) is shown as escapes; in a pipe it is as printed.",
    )
    parser.add_argument("trial", metavar="TRIAL", help="an id, STUDY/NAME or name, or the beginning of one")
    parser.add_argument("--rank", type=int, metavar="N", help="this rank")
    parser.add_argument("--attempt", metavar="NNN", help="this attempt, for example 001")
    parser.add_argument("--lines", "-n", type=_count, metavar="N", help="only the last N lines")
    parser.add_argument("--follow", "-f", action="store_true", help="print what comes until the attempt ends")
    add_results_flag(parser)


def run(given: argparse.Namespace) -> int:
    answering = answer(given)
    with answering.store:
        trial, attempt, ranks = _attempt(answering, given)
    folder = Path(attempt.run_dir)
    rank = given.rank if given.rank is not None else attempt.rank or 0
    if given.rank is not None and not 0 <= rank < ranks:
        raise UsageError(f"Trial {trial} has no rank {rank}: it has {counted(ranks, 'rank')}, numbered from 0.")
    path = layout.rank_log(folder, rank)
    if not path.exists() and not given.follow:
        path = _launch_log(folder, rank)
    if given.json:
        print(json.dumps({"trial": trial, "attempt": attempt.number, "rank": rank, "log": str(path)}, indent=2))
        return 0
    offset = _print_tail(path, given.lines) if path.exists() else 0
    if given.follow:
        _follow(folder, path, offset)
    return 0


def _attempt(answering: Answering, given: argparse.Namespace) -> tuple[str, AttemptDetail, int]:
    """The trial's id, the attempt that is asked for, and how many ranks the trial has."""
    from orchestrator.store.detail import trial_detail
    from orchestrator.store.find import find

    with answering.store.reading() as connection:
        found = find(connection, given.trial)
        if found.kind == "study":
            raise UsageError(f"{given.trial!r} is a study: name one of its trials (`show {given.trial}` lists them).")
        detail = trial_detail(connection, found.name)
    attempts = [] if detail is None else detail.attempts
    if given.attempt is not None:
        attempts = [one for one in attempts if one.number == given.attempt.zfill(3)]
    if detail is None or not attempts:
        raise NothingQualifies(
            f"Trial {found.name} has not run{' as attempt ' + given.attempt if given.attempt else ''}."
        )
    return found.name, attempts[-1], detail.world_size


def _launch_log(folder: Path, rank: int) -> Path:
    """What the launcher printed, where the rank itself never did."""
    from orchestrator.dispatch.local import LAUNCH_LOG

    path = folder / LAUNCH_LOG
    if not path.exists():
        raise NothingQualifies(f"Rank {rank} left no log in {folder}.")
    print(f"rank {rank} printed nothing; this is what its launcher printed:", file=sys.stderr)
    return path


def _print_tail(path: Path, lines: int | None) -> int:
    """Print a log, or its last lines; how many bytes of it have been seen."""
    with path.open("rb") as stream:
        data = stream.read()
    text = data.decode("utf-8", "replace")
    if lines is not None:
        text = "".join(text.splitlines(keepends=True)[-lines:] if lines > 0 else [])
    _write(text)
    return len(data)


def _write(text: str) -> None:
    sys.stdout.write(visible_lines(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _count(text: str) -> int:
    """A number of lines."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines: give zero or more")
    return int(text)


def _follow(folder: Path, path: Path, offset: int) -> None:
    from orchestrator.dispatch.attempt import read_attempt

    while True:
        record = read_attempt(folder)
        over = record is None or record.ended_at is not None
        if path.exists():
            with path.open("rb") as stream:
                stream.seek(offset)
                data = stream.read()
            offset += len(data)
            _write(data.decode("utf-8", "replace"))
        if over:
            return
        time.sleep(_POLL_SECONDS)
