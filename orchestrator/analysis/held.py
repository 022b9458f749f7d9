"""Which trials their driver did not start, since a control and a trial before them never began."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection


def held_back(connection: Connection, trials: Collection[str]) -> set[str]:
    """Those of `trials` that the newest batch which they are in holds back. A folder that others could write says
    nothing."""
    from orchestrator.dispatch.liveness import read_driver_state
    from orchestrator.store.overview import newest_batches

    found: set[str] = set()
    for folder, here in newest_batches(connection, trials).items():
        try:
            layout.check_private(Path(folder))
            state = read_driver_state(Path(folder))
        except (FormatError, OSError):
            continue
        found.update(here.intersection(state.held_back) if state is not None else ())
    return found
