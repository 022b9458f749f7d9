"""The rows that a verb was asked about, after collecting."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.config.errors import NothingQualifies

if TYPE_CHECKING:
    from orchestrator.analysis.targets import Found


def read_rows(args: argparse.Namespace, words: Sequence[str]) -> Found:
    """Rows of studies or trials by the words of a command line; what collecting has to say goes to stderr.

    Raises:
        UsageError: a word names nothing.
        NothingQualifies: nothing of it has run.
        EnvironmentFailure: the database cannot be read.
    """
    from orchestrator.analysis.targets import find_rows
    from orchestrator.cli.storage import answer
    from orchestrator.report.text import plain

    answering = answer(args)
    for note in answering.notes:
        print(f"note: {plain(note)}", file=sys.stderr)
    for collected in answering.collected:
        for problem in collected.problems:
            print(f"warning: {plain(problem.message)}", file=sys.stderr)
    with answering.store as store, store.reading() as connection:
        found = find_rows(connection, words)
    if not found.rows:
        raise NothingQualifies(f"Nothing of {', '.join(words) or 'this study'} has run yet.")
    return found
