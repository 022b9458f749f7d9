"""What searches decided about a study's candidates, out of the files that their drivers left beside the batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from orchestrator.dispatch.search import Decided


def searches(connection: Connection, studies: Sequence[str]) -> dict[str, list[Decided]]:
    """What the searches of these studies decided, by study; only of those that searched."""
    from orchestrator.store.overview import batch_folders

    folders = batch_folders(connection, studies)
    return {study: made for study, batches in folders.items() if (made := decisions_of(map(Path, batches)))}


def decisions_of(folders: Iterable[Path]) -> list[Decided]:
    """What the searches of these batches decided, oldest first; of folders that others could write, nothing."""
    found: list[Decided] = []
    for folder in folders:
        if not (folder / layout.DECISIONS_FILE).exists():
            continue
        from orchestrator.dispatch.search import read_decisions  # slow to import, and few studies search

        try:
            layout.check_private(folder)
        except (FormatError, OSError):
            continue
        found += read_decisions(folder)
    return sorted(found, key=lambda one: one.at)


def left_out(decided: Mapping[str, Sequence[Decided]]) -> dict[str, dict[str, str]]:
    """By study, the candidates that its search ended without, and why of each; nothing of one that goes on."""
    return {
        study: {one.name: one.why for one in made[-1].skipped}
        for study, made in decided.items()
        if made[-1].next is None
    }
