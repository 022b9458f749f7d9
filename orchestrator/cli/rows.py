"""What a verb was asked about, after collecting."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.analysis.targets import Found
    from orchestrator.api import Results


@contextlib.contextmanager
def results(args: argparse.Namespace, words: Sequence[str], *, deltas: bool = True) -> Iterator[Results]:
    """The comparison that the words of a command line name; what collecting has to say goes to stderr.

    Raises:
        UsageError: a word names nothing.
        NothingQualifies: nothing of it has run.
        EnvironmentFailure: the database cannot be read.
    """
    from orchestrator.api import Database
    from orchestrator.cli.storage import answer
    from orchestrator.report.text import plain

    answering = answer(args)
    for note in answering.notes:
        print(f"note: {plain(note)}", file=sys.stderr)
    for collected in answering.collected:
        for problem in collected.problems:
            print(f"warning: {plain(problem.message)}", file=sys.stderr)
    with Database(answering.store) as database:
        yield database.study(*words, deltas=deltas)


def read_rows(args: argparse.Namespace, words: Sequence[str]) -> Found:
    """The rows alone. Errors as `results`."""
    with results(args, words) as found:
        return found.found
