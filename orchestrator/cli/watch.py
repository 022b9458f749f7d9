"""`watch`: what runs and waits, on one screen until all has ended."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.cli.live import Live, live
from orchestrator.cli.storage import Answering, add_results_flag, answer

if TYPE_CHECKING:
    from orchestrator.dispatch.liveness import DriverState

_REFRESH_SECONDS = 2.0
# How long something takes already: at every look another, and no change.
_TICKING = re.compile(r", (?:no sign for )?\d+ s$")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "watch",
        help="what runs and waits, on one screen until all has ended",
        description="Collects and shows, every two seconds, each study's trials by outcome, what runs and where it is, "
        "and what waits. Ends when nothing runs or waits; Ctrl-C ends only the watching. A pipe gets what changed.",
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
    return 0


def _print_changes(given: argparse.Namespace) -> None:
    before: Any = None
    while True:
        if given.json:
            said: Any = _as_json(given)
            going = said["live"]
            if said != before:
                print(json.dumps(said), flush=True)
        else:
            lines, going = _look(given)
            said = {_TICKING.sub("", line) for line in lines}
            for line in lines if before is None else [line for line in lines if _TICKING.sub("", line) not in before]:
                print(line, flush=True)
        before = said
        if not going:
            return
        time.sleep(max(0.2, given.every))


def _look(given: argparse.Namespace) -> tuple[list[str], bool]:
    """What the screen shows, and whether anything runs or waits."""
    from orchestrator.report.watch import watch_lines

    answering = answer(given)
    with answering.store:
        name, studies, waiting = _overview(answering, given.study)
        batches = [one for one in live(answering) if name in (None, one.batch.study)]
        return watch_lines(studies, [_state(one) for one in batches], waiting, time.time()), bool(batches)


def _as_json(given: argparse.Namespace) -> dict[str, Any]:
    answering = answer(given)
    with answering.store:
        name, studies, waiting = _overview(answering, given.study)
        batches = [one for one in live(answering) if name in (None, one.batch.study)]
        running = [asdict(current) for one in batches for current in _state(one).current]
    return {
        "studies": [asdict(one) for one in studies],
        "running": [{key: value for key, value in one.items() if key != "beacon_dir"} for one in running],
        "waiting": [asdict(one) for one in waiting],
        "live": [one.batch.batch for one in batches],
    }


def _overview(answering: Answering, word: str | None) -> tuple[str | None, list[Any], list[Any]]:
    from orchestrator.store.find_study import find_study
    from orchestrator.store.overview import studies, waiting

    with answering.store.reading() as connection:
        name = find_study(connection, word) if word else None
        return name, studies(connection, name), waiting(connection, name)


def _state(one: Live) -> DriverState:
    from orchestrator.dispatch.submit import state_of

    return state_of(one.results_dir, one.batch.batch)
