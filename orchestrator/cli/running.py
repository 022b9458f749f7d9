"""Handing a study's trials over, following them, and cancelling them when the user interrupts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from orchestrator.cli.place import collect, note, writable_store
from orchestrator.cli.planning import Asked
from orchestrator.config.errors import EnvironmentFailure
from orchestrator.records.layout import batch_dir, untrusted_trials
from orchestrator.report.text import plain

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan
    from orchestrator.select.search import Search

CANCEL_SECONDS = 20.0
"""How long a cancelled study may take to leave its records: ranks have three seconds, the driver a few more."""

_ROOM_BYTES = 1 << 20
"""Less than this is no room for the records of a trial."""


@dataclass
class Running:
    """The batches that this command started, and those of others that hold trials it asked for."""

    own: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    waited: set[str] = field(default_factory=set)
    """Trials that batches of other commands were left to run."""
    refused: list[str] = field(default_factory=list)
    """Trials that were not started, because nobody would read what they leave."""


def submit(asked: Asked, plan: Plan, search: Search | None = None) -> Running:
    """Hand over what is missing, and find the batches of others that run some of it already."""
    from orchestrator.dispatch.batch import Ask, Controls
    from orchestrator.dispatch.handover import hand_over
    from orchestrator.dispatch.submit import live_batches
    from orchestrator.store.plans import known_results

    def measured() -> set[str]:
        """Another command may have run some of it since this one planned."""
        with writable_store(asked) as store:
            collect(store, asked.results_dir, settle=False)
            return set(known_results(store, [entry.trial for entry in plan.new]))

    def announce() -> None:
        with writable_store(asked) as store:
            collect(store, asked.results_dir, settle=False)

    running = Running()
    taken: set[str] = set()
    untrusted = untrusted_trials(asked.results_dir, [entry.trial for entry in plan.new])
    running.refused = [*untrusted]
    for entry in plan.new:
        if entry.trial in untrusted:
            note(f"not run: {plain(entry.name)}: {plain(untrusted[entry.trial])}")
    if untrusted and search is not None:
        raise EnvironmentFailure("The search is not started: see above.")
    asks = [Ask.of(entry) for entry in plan.new if entry.trial not in untrusted]
    controls = Controls.of(plan)
    untrusted = untrusted_trials(asked.results_dir, [ask.trial for ask in controls.measured])
    trusted = tuple(ask for ask in controls.measured if ask.trial not in untrusted)
    if asks:
        submitted = hand_over(
            asks,
            asked.request,
            plan.study,
            asked.results_dir,
            fingerprint=plan.software,
            announce=announce,
            search=search,
            measured=measured,
            controls=replace(controls, measured=trusted),
        )
        running.own = [batch.batch for batch in submitted.batches]
        taken = set(submitted.elsewhere)
        runs = sum(len(batch.trials) for batch in submitted.batches)
        asked_for = {ask.trial for ask in asks}
        added = runs - len({trial.trial for batch in submitted.batches for trial in batch.trials} & asked_for)
        if search is not None:
            note(f"a search over {len(search.candidates)} candidates: the driver decides which of them run")
        elif added > 0:
            note(f"{runs} runs: {added} more of controls, to hold the trials against and to see how far they drift")
    taken |= {entry.trial for entry in plan.known if entry.label is None}
    running.waited = taken
    if taken:
        running.others = [
            live.batch
            for live in live_batches(asked.results_dir)
            if live.batch not in running.own and live.open_trials & taken
        ]
    return running


def follow(asked: Asked, running: Running, *, interrupted: bool) -> bool:
    """Show progress until the batches end; whether the user interrupted it, which cancels this command's own.

    Raises:
        EnvironmentFailure: a driver failed, in its own words.
    """
    from orchestrator.report import progress

    try:
        if interrupted:
            raise KeyboardInterrupt
        progress.follow(asked.results_dir, [*running.own, *running.others])
    except KeyboardInterrupt:
        cancel(asked, running)
        return True
    return False


def cancel(asked: Asked, running: Running) -> None:
    """End the batches of this command, and wait until they have left their records."""
    from orchestrator.dispatch import submit as local

    for batch in running.own:
        local.cancel(asked.results_dir, batch)
    if running.own:
        note("cancelling; the same command runs what is missing")
    if running.others:
        note(f"batch {', '.join(running.others)} of another command goes on")
    ended = [local.wait_for_end(asked.results_dir, batch, CANCEL_SECONDS) for batch in running.own]
    if not all(ended):
        note(f"the driver has not ended within {CANCEL_SECONDS:.0f} s; `status` shows when it has")


def refuse_dead(asked: Asked, running: Running) -> None:
    """End where a driver of this command ended without saying so: killed, or on a full disk.

    Raises:
        EnvironmentFailure: with the error that it died of, if it printed one.
    """
    from orchestrator.dispatch.liveness import RUNNING, is_alive, read_driver_state
    from orchestrator.records.jsonfile import FormatError

    for batch in running.own:
        folder = batch_dir(asked.results_dir, batch)
        if not folder.is_dir():
            raise EnvironmentFailure(
                f"The results folder {asked.results_dir} is gone, or batch {batch} of it is: it was removed while its "
                "trials ran, and what they had measured with it. The same command starts again."
            )
        try:
            state = read_driver_state(folder)
        except FormatError:
            state = None
        if (state is None or state.state == RUNNING) and not is_alive(folder):
            raise EnvironmentFailure(
                f"The driver of batch {batch} died before its trials were done{_last_error(folder / 'driver.log')}. "
                f"{_full(folder)}The same command runs what is missing."
            )


def _full(folder: Path) -> str:
    """That there is no room, where that is so: a driver that dies of it cannot write why."""
    space = os.statvfs(folder)
    if space.f_bavail * space.f_frsize >= _ROOM_BYTES and (space.f_favail or not space.f_files):
        return ""
    return f"The file system of {folder.parent.parent} has no free space left: make room first. "


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else []
    return f" ({lines[0]}; see {log})" if lines and re.match(r"[\w.]*(Error|Exception)\b", lines[0]) else f"; see {log}"


@contextlib.contextmanager
def interrupts_held() -> Iterator[list[int]]:
    """Keep interrupts while the block runs, so that no driver is started of which nobody knows; those that came."""
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
