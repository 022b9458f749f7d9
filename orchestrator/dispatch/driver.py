"""The driver: works a batch down, whatever happens to its trials. `python -m orchestrator.dispatch.driver BATCH_DIR`.

One thread: supervisors ask the kernel to end with the *thread* that started them (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.dispatch import attempt as attempts
from orchestrator.dispatch.attempt import RunningAttempt
from orchestrator.dispatch.cancel import read_cancelled
from orchestrator.dispatch.followup import Left
from orchestrator.dispatch.home import at_home
from orchestrator.dispatch.interruption import Interruption
from orchestrator.dispatch.journal import ENDED, STARTED, Event, write_event
from orchestrator.dispatch.launcher import Launcher
from orchestrator.dispatch.liveness import (
    CANCELLED,
    DRIVER_FILE,
    FAILED,
    FINISHED,
    RUNNING,
    UNFINISHED,
    DriverState,
    pid_start_time,
    take_driver_lock,
)
from orchestrator.dispatch.local import LocalLauncher
from orchestrator.dispatch.queue import BAD_NODE_CAUSES, Fate, Made, held_back, open_slots, startable
from orchestrator.dispatch.search import Searching
from orchestrator.dispatch.timelimit import fits
from orchestrator.outcome import Outcome
from orchestrator.records import layout
from orchestrator.records.jsonfile import decode, read_json, write_json
from orchestrator.records.spec import AttemptRecord, Batch

HEARTBEAT_SECONDS = 5.0
_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Surroundings:
    """What the driver knows of the job it runs in; on a machine of one's own there is none."""

    job: dict[str, Any] | None = None
    seconds_left: Callable[[], float | None] = lambda: None
    """Until the job's time limit; None where there is none."""
    margin: float = 0.0
    """Seconds the driver needs for itself before the job ends."""
    may_defer: bool = False
    """Whether what should run on other nodes can be left to a follow-up job."""


class Driver:
    """Works one batch down."""

    def __init__(
        self,
        batch_dir: Path,
        batch: Batch,
        launcher: Launcher,
        interruption: Interruption,
        surroundings: Surroundings,
    ) -> None:
        self.ended = 0
        """Attempts that came to their own end."""
        self._dir = batch_dir
        self._batch = batch
        self._launcher = launcher
        self._interruption = interruption
        self._surroundings = surroundings
        self._search = Searching.of(batch_dir, batch)
        self._running: list[RunningAttempt] = []
        self._made: list[Made] = []
        self._dropped: frozenset[str] = frozenset()
        self._deferred: set[int] = set()
        self._bad_nodes: set[str] = set()
        self._out_of_time: set[int] = set()
        self._durations: list[float] = []
        self._started_at = time.time()
        self._said_at = 0.0

    def run(self) -> str:
        """Run every trial that is open and fits; the state it ended in."""
        self._say(RUNNING)
        self._made = attempts.made_before(self._batch, self._launcher)
        while True:
            self._heed_cancellation()
            changed = self._finish_ended()
            if self._interruption.reason is None:
                changed |= self._start_next()
            if not self._running and not changed:
                break
            if changed or time.time() - self._said_at >= HEARTBEAT_SECONDS:
                self._say(RUNNING)
            self._interruption.wait(_TICK_SECONDS if self._running else 0.0)
        for note in self._launcher.close():
            print(note, file=sys.stderr)
        state = FINISHED
        if self._interruption.reason == attempts.CANCELLED:
            state = CANCELLED
        elif self.left():
            state = UNFINISHED
        self._say(state)
        return state

    def left(self) -> list[int]:
        """Positions in the batch that still need an attempt."""
        if self._search is not None and self._search.done:
            return []
        return self._open()

    def _open(self) -> list[int]:
        return open_slots(self._batch, self._made, self._dropped, search=self._search is not None)

    def _held_back(self) -> list[int]:
        return [] if self._search is not None else held_back(self._batch, self._made, self._dropped)

    def _done(self) -> int:
        return len(self._batch.trials) - len(self.left()) - len(self._held_back())

    def _ended_slots(self) -> int:
        """Positions that had their last attempt."""
        return len({attempt.slot for attempt in self._made} - set(self.left()))

    def left_over(self) -> Left:
        """What another job is to do, with what it must know of this one."""
        retried = Counter(attempt.slot for attempt in self._made if attempt.fate is Fate.RETRY)
        return Left(self.left(), retried, self._out_of_time, self._bad_nodes)

    def give_up(self, error: str) -> None:
        """End what runs and say that the driver itself failed."""
        try:
            for attempt in self._running:
                attempt.end(attempts.DRIVER_SIGNAL)
            while not all(attempt.poll() for attempt in self._running):
                self._interruption.wait(_TICK_SECONDS)
        finally:
            self._say(FAILED, error)

    def _heed_cancellation(self) -> None:
        everything, trials = read_cancelled(self._dir)
        if everything and self._interruption.reason is None:
            self._interruption.end(attempts.CANCELLED)
        self._dropped = trials
        for attempt in self._running:
            if self._interruption.reason is not None:
                attempt.end(self._interruption.reason)
            elif attempt.record.trial in trials:
                attempt.end(attempts.CANCELLED)

    def _finish_ended(self) -> bool:
        ended = [attempt for attempt in self._running if attempt.poll()]
        for attempt in ended:
            record, outcome, fate = attempts.finish(attempt, self._launcher)
            if record.cut_short is not None:
                self._interruption.end(record.cut_short)  # the job is over, whether or not anybody told the driver
            self._running.remove(attempt)
            self._made.append(Made(attempt.slot, fate, outcome.cause))
            seconds = (record.ended_at or record.started_at) - record.started_at
            self._learn(attempt, outcome, fate, seconds)
            self._note(
                ENDED,
                record,
                seconds=seconds,
                label=outcome.label,
                cut_short=record.cut_short,
                retried=attempt.slot in self.left(),
                done=None if self._search is not None else self._ended_slots(),
                total=None if self._search is not None else len(self._batch.trials),
            )
        return bool(ended)

    def _start_next(self) -> bool:
        running = [attempt.slot for attempt in self._running]
        held: set[int] = set()
        if self._search is not None:
            held = self._search.held(self._open(), busy=bool(running))
        slots = startable(
            self._batch,
            self._made,
            running,
            self._dropped,
            self._deferred | held,
            search=self._search is not None,
        )
        started = False
        for slot in slots:
            if not self._fits(self._batch.trials[slot].time_limit_seconds):
                break
            attempt = attempts.begin(self._batch, slot, self._launcher)
            self._running.append(attempt)
            self._note(STARTED, attempt.record)
            started = True
        return started

    def _fits(self, time_limit: float | None) -> bool:
        left = self._surroundings.seconds_left()
        return fits(left, self._durations, time_limit, self._surroundings.margin)

    def _learn(self, attempt: RunningAttempt, outcome: Outcome, fate: Fate, seconds: float) -> None:
        """What an ended attempt says about the ones to come: how long they take, and where they should not run."""
        if fate is Fate.CUT_SHORT:
            if attempt.ending == attempts.JOB_TIME_LIMIT:
                self._out_of_time.add(attempt.slot)
            return
        self.ended += 1
        self._durations.append(seconds)
        if fate is Fate.RETRY and outcome.cause in BAD_NODE_CAUSES and self._surroundings.may_defer:
            hosts = attempts.hosts_of(outcome, attempt.spec)
            self._bad_nodes |= hosts
            if hosts:
                self._deferred.add(attempt.slot)

    def _note(self, event: str, record: AttemptRecord, **more: Any) -> None:
        what = Event(time.time(), event, record.trial, record.attempt, record.name, record.role, **more)
        write_event(self._dir, what)
        print(f"{record.trial}/{record.attempt} {record.name}: {event} {what.label or ''}".rstrip(), flush=True)

    def _say(self, state: str, error: str | None = None) -> None:
        self._said_at = time.time()
        still_open = self.left()
        write_json(
            self._dir / DRIVER_FILE,
            DriverState(
                batch=self._batch.batch,
                pid=os.getpid(),
                pid_started=pid_start_time(os.getpid()) or 0,
                host=socket.gethostname(),
                started_at=self._started_at,
                heartbeat=self._said_at,
                state=state,
                done=self._done(),
                total=len(self._batch.trials),
                current=[attempt.current for attempt in self._running],
                open_trials=[self._batch.trials[slot].trial for slot in still_open],
                held_back=[self._batch.trials[slot].trial for slot in self._held_back()],
                error=error,
                job=self._surroundings.job,
            ),
        )


def drive(batch_dir: Path) -> str:
    """Run a batch of this machine in this process until nothing is left to do; the state it ended in.

    Raises:
        FormatError: the batch is damaged, or of a newer release.
        OSError: the results folder cannot be written.
    """
    interruption = Interruption()
    batch = batch_in(batch_dir)
    return work(Driver(batch_dir, batch, _local(batch), interruption, Surroundings()))


def work(driver: Driver) -> str:
    """Let a driver work, and say so where it fails itself."""
    try:
        return driver.run()
    except Exception as error:
        traceback.print_exc()
        driver.give_up(f"{type(error).__name__}: {error}")
        raise


def batch_in(batch_dir: Path) -> Batch:
    """What is to be run.

    Raises:
        FormatError: it is damaged, or of a newer release.
        UntrustedFolderError: others could have written it.
    """
    layout.check_private(batch_dir)
    return at_home(
        decode(Batch, read_json(batch_dir / layout.BATCH_FILE), str(batch_dir / layout.BATCH_FILE)), batch_dir
    )


def _local(batch: Batch) -> LocalLauncher:
    return LocalLauncher(
        python=batch.launcher.get("python"),
        parallel_trials=batch.parallel_trials,
        setup=batch.launcher.get("setup") or (),
        results_dir=batch.results_dir,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.dispatch.driver", description=__doc__)
    parser.add_argument("batch_dir", type=Path)
    parser.add_argument("--lock-fd", type=int, help="descriptor of the batch's lock, held already")
    given = parser.parse_args(arguments)
    if given.lock_fd is None and take_driver_lock(given.batch_dir) is None:
        print(f"{given.batch_dir}: another driver is working on this batch", file=sys.stderr)
        return 1
    if batch_in(given.batch_dir).launcher.get("kind") == "local":
        drive(given.batch_dir)
    else:
        from orchestrator.dispatch.slurm.job import drive_here

        drive_here(given.batch_dir)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
