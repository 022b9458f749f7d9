"""The results folder and the database of a command, opened to be written."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.planning import Asked
from orchestrator.config.errors import EnvironmentFailure

if TYPE_CHECKING:
    from orchestrator.store.database import Store


@contextlib.contextmanager
def writable_store(asked: Asked) -> Iterator[Store]:
    """The database, opened to be written; a results folder that cannot be is refused before anything is judged."""
    from orchestrator.records import layout
    from orchestrator.store.database import open_store

    try:
        layout.make_private_dir(asked.results_dir)
        layout.check_private(asked.results_dir)
    except OSError as error:
        raise _unwritable(asked, error.strerror or str(error)) from error
    check_place(asked)
    with open_store(asked.database, write=True) as store:
        yield store


def check_place(asked: Asked) -> None:
    """Refuse a results folder that cannot be written, or made, before anything is judged."""
    place = asked.results_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise _unwritable(asked, f"{place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise _unwritable(asked, os.strerror(errno.EACCES))


def _unwritable(asked: Asked, why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"The results folder {asked.results_dir} cannot be written ({why}): set results_dir to a folder of your own."
    )


def collect(store: Store, results_dir: Path, *, settle: bool = True) -> None:
    """Take in what has been written, after writing what became of killed drivers and ended jobs."""
    from orchestrator.dispatch import handover
    from orchestrator.report.text import plain
    from orchestrator.store.collect import collect as take_in

    if settle:
        handover.settle(results_dir)
    for problem in take_in(store, results_dir).problems:
        note(f"warning: {plain(problem.message)}")


def note(text: str) -> None:
    """Say something beside the answer."""
    print(text, file=sys.stderr, flush=True)
