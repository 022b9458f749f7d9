"""The live batches that a word on the command line means: for the verbs that act on what runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.storage import Answering

if TYPE_CHECKING:
    from orchestrator.dispatch.submit import LiveBatch


@dataclass(frozen=True)
class Live:
    """A live batch, and where it lies."""

    results_dir: Path
    batch: LiveBatch


def live(answering: Answering) -> list[Live]:
    """Every live batch of the results folders that the database knows and this user owns."""
    from orchestrator.dispatch.submit import live_batches

    return [Live(folder, batch) for folder in _own_folders(answering) for batch in live_batches(folder)]


def refuse_copies(answering: Answering) -> None:
    """Refuse where this is a copy of a results folder, and what was asked for may run in the original.

    Raises:
        EnvironmentFailure: names both folders.
    """
    from orchestrator.dispatch.submit import refuse_copies as refuse

    for folder in _own_folders(answering):
        refuse(folder)


def more_to_come(answering: Answering) -> bool:
    """Whether a command has planned something and has not handed it over yet."""
    from orchestrator.dispatch.submit import is_handing_over

    return any(is_handing_over(folder) for folder in _own_folders(answering))


def _own_folders(answering: Answering) -> list[Path]:
    from orchestrator.records.layout import UntrustedFolderError, check_private
    from orchestrator.store.overview import results_dirs

    with answering.store.reading() as connection:
        folders = [Path(folder) for folder in results_dirs(connection, answering.results_dir)]
    found = []
    for folder in folders:
        try:
            check_private(folder)
        except (FileNotFoundError, UntrustedFolderError):
            continue
        found.append(folder)
    return found
