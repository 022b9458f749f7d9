"""What a study on this machine is doing now: a live screen, or plain lines where nobody watches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.dispatch.attempt import slowest_rank
from orchestrator.dispatch.journal import ENDED, Event, read_events
from orchestrator.dispatch.liveness import FAILED, CurrentTrial, DriverState, is_alive, read_driver_state
from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError
from orchestrator.records.rank import LastBeacon
from orchestrator.records.spec import ROLE_CONTROL_LAST

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_POLL_SECONDS = 0.25


def follow(results_dir: Path, batches: Sequence[str], console: Console | None = None) -> None:
    """Show the progress of batches of this machine until their drivers have ended.

    A terminal sees one line a running trial, redrawn; a pipe gets one line when a trial starts and one when it ends.
    An interrupt (Ctrl-C) goes through to the caller: the drivers know nothing of it.

    Raises:
        EnvironmentFailure: a driver failed, in its own words.
    """
    from rich.console import Console
    from rich.live import Live

    console = console or Console(stderr=True)
    folders = [layout.batch_dir(results_dir, batch) for batch in batches]
    offsets = dict.fromkeys(folders, 0)
    if not console.is_terminal:
        while _step(console, folders, offsets, plain=True):
            time.sleep(_POLL_SECONDS)
    else:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while _step(console, folders, offsets, plain=False):
                live.update(_screen(folders))
                time.sleep(_POLL_SECONDS)
    for folder in folders:
        state = _state(folder)
        if state is not None and state.state == FAILED:
            raise EnvironmentFailure(f"The driver of batch {folder.name} stopped: {state.error}.")


def event_line(event: Event) -> str:
    """A trial's start or end in one line."""
    name = f"{event.name} (closing control)" if event.role == ROLE_CONTROL_LAST else event.name
    if event.event != ENDED:
        return f"{name}: started"
    said = f"cut short ({event.cut_short.replace('_', ' ')})" if event.cut_short else event.label or "no outcome"
    took = "" if event.seconds is None else f" in {event.seconds:.1f} s"
    count = "" if event.done is None else f"[{event.done}/{event.total}] "
    return f"{count}{name}: {said}{took}{', tried again' if event.retried else ''}"


def current_line(current: CurrentTrial, last: LastBeacon | None, now: float) -> str:
    """A running trial in one line: where its slowest rank is, and for how long the trial has run."""
    where = "starting"
    if last is not None:
        where = f"{last.stage} iteration {last.iteration}" if last.iteration else str(last.stage)
    return f"{current.name}: {where}, {max(0.0, now - current.since):.0f} s"


def _step(console: Console, folders: Sequence[Path], offsets: dict[Path, int], *, plain: bool) -> bool:
    """Print what has happened since the last time; whether a driver is still alive."""
    alive = [folder for folder in folders if is_alive(folder)]
    for folder in folders:
        events, offsets[folder] = read_events(folder, offsets[folder])
        for event in events:
            if plain or event.event == ENDED:
                console.print(event_line(event), highlight=False, markup=False)
    return bool(alive)


def _screen(folders: Sequence[Path]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = []
    for folder in folders:
        state = _state(folder)
        if state is None:
            lines.append(Text("starting"))
            continue
        now = time.time()
        lines += [
            Text(current_line(current, slowest_rank(Path(current.beacon_dir)), now), overflow="ellipsis")
            for current in state.current
        ]
        lines.append(Text(f"{state.done} of {state.total} trials done", style="dim"))
    return Group(*lines)


def _state(folder: Path) -> DriverState | None:
    try:
        return read_driver_state(folder)
    except FormatError:
        return None
