"""`watch`: what runs and waits, on one screen until all has ended."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.cli.live import Live, live, more_to_come
from orchestrator.cli.storage import Answering, add_results_flag, answer, locate
from orchestrator.cli.trackers import send_wanted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from orchestrator.dispatch.liveness import DriverState
    from orchestrator.report.remaining import Remaining

_REFRESH_SECONDS = 2.0
# How long something takes already: at every look another, and no change.
_TICKING = re.compile(r", (?:no sign for )?\d+ s$|^  about .* left$|[\d.e+-]+ spent|about [\d.e+-]+ left to run")
_TICKING_KEYS = ("left", "gpu_hours")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "watch",
        help="what runs and waits, on one screen until all has ended",
        description="Collects and shows, every two seconds, each study's trials by outcome, what runs and in which "
        "stage it is now, the time and the GPU-hours left, and what waits. What is left is reckoned at the mean of the "
        "runs that have ended. Ends when nothing runs or waits; Ctrl-C ends only the watching. A pipe gets what "
        "changed.",
    )
    parser.add_argument("study", nargs="?", metavar="STUDY", help="one study, by name or the beginning of its name")
    parser.add_argument("--every", type=float, default=_REFRESH_SECONDS, metavar="SECONDS", help="between two looks")
    add_results_flag(parser)


def run(given: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live as Screen
    from rich.text import Text

    if given.json or not sys.stdout.isatty():
        _print_changes(given)
        send_wanted(locate(given))
        return 0
    console = Console()
    lines: list[str] = []
    with Screen(console=console, refresh_per_second=4, transient=True) as screen:
        while True:
            lines, going = _look(given)
            height = max(4, console.height - 1)
            shown = lines if len(lines) <= height else [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
            screen.update(Text("\n".join(shown), no_wrap=True, overflow="ellipsis"))
            if not going:
                break
            time.sleep(max(0.2, given.every))
    console.print("\n".join(lines), highlight=False, markup=False)
    send_wanted(locate(given))
    return 0


def _print_changes(given: argparse.Namespace) -> None:
    before: Any = None
    while True:
        if given.json:
            found = _as_json(given)
            going = found["live"] or found["more_to_come"]
            said: Any = {key: value for key, value in found.items() if key not in _TICKING_KEYS}
            if said != before:
                print(json.dumps(found), flush=True)
        else:
            lines, going = _look(given)
            said = {_TICKING.sub("", line) for line in lines}
            for line in lines if before is None else [line for line in lines if _TICKING.sub("", line) not in before]:
                print(line, flush=True)
        before = said
        if not going:
            return
        time.sleep(max(0.2, given.every))


@dataclass(frozen=True)
class _Seen:
    """One look at everything."""

    studies: list[Any]
    waiting: list[Any]
    held: set[str]
    """Trials that wait for nothing: their driver holds them back."""
    drivers: list[DriverState]
    left: dict[str, Remaining]
    hours: list[Any]
    allowed: dict[str, float]
    """GPU-hours by study, where it may not take more."""
    more_to_come: bool
    """Whether a command is about to hand over what it has planned."""


def _look(given: argparse.Namespace) -> tuple[list[str], bool]:
    """What the screen shows, and whether anything runs or waits."""
    from orchestrator.report.watch import watch_lines

    seen = _see(given)
    lines = watch_lines(
        seen.studies,
        seen.drivers,
        seen.waiting,
        time.time(),
        held=seen.held,
        left=seen.left,
        hours=seen.hours,
        allowed=seen.allowed,
    )
    return lines, bool(seen.drivers) or seen.more_to_come


def _as_json(given: argparse.Namespace) -> dict[str, Any]:
    from orchestrator.report.watch import place

    seen = _see(given)
    running = []
    for current in (current for driver in seen.drivers for current in driver.current):
        stage, iteration = place(current)
        running.append({**asdict(current), "stage": stage, "iteration": iteration or None})
    return {
        "studies": [asdict(one) for one in seen.studies],
        "running": [{key: value for key, value in one.items() if key != "beacon_dir"} for one in running],
        "waiting": [{**asdict(one), "held_back": one.trial in seen.held} for one in seen.waiting],
        "live": [driver.batch for driver in seen.drivers],
        "left": [asdict(one) for one in seen.left.values()],
        "gpu_hours": [asdict(one) for one in seen.hours],
        "more_to_come": seen.more_to_come,
    }


def _see(given: argparse.Namespace) -> _Seen:
    """Where nothing runs any more, what the last of it did may have come after the look at the records: look again."""
    seen = _seen(given)
    return seen if seen.drivers or seen.more_to_come else _seen(given)


def _seen(given: argparse.Namespace) -> _Seen:
    from orchestrator.analysis.held import held_back
    from orchestrator.store.hours import study_hours
    from orchestrator.store.overview import study_settings

    answering = answer(given)
    with answering.store:
        coming = more_to_come(answering)  # before the batches: what was coming then is one of them, or still coming
        name, studies, waiting = _overview(answering, given.study)
        batches = [one for one in live(answering) if name in (None, one.batch.study)]
        with answering.store.reading() as connection:
            held = held_back(connection, {one.trial for one in waiting})
            left = {one.batch.batch: _left(one, connection) for one in batches}
            hours = study_hours(connection, time.time(), name)
            limits = {study: found.get("gpu_hours") for study, found in study_settings(connection, name).items()}
        allowed = {study: float(limit) for study, limit in limits.items() if limit is not None}
        return _Seen(studies, waiting, held, [_state(one) for one in batches], left, hours, allowed, coming)


def _left(one: Live, connection: Connection) -> Remaining:
    from orchestrator.dispatch.journal import read_events
    from orchestrator.dispatch.submit import read_batch
    from orchestrator.records.layout import batch_dir
    from orchestrator.report.remaining import remaining
    from orchestrator.store.hours import run_seconds

    folder = batch_dir(one.results_dir, one.batch.batch)
    events, _ = read_events(folder)
    earlier = run_seconds(connection, one.batch.study)
    return remaining(read_batch(folder), _state(one), events, time.time(), earlier=earlier)


def _overview(answering: Answering, word: str | None) -> tuple[str | None, list[Any], list[Any]]:
    from orchestrator.store.find_study import find_study
    from orchestrator.store.overview import studies, waiting

    with answering.store.reading() as connection:
        name = find_study(connection, word) if word else None
        return name, studies(connection, name), waiting(connection, name)


def _state(one: Live) -> DriverState:
    from orchestrator.dispatch.submit import state_of

    return state_of(one.results_dir, one.batch.batch)
