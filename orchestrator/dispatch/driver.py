"""The driver: works a batch down, whatever happens to its trials. `python -m orchestrator.dispatch.driver BATCH_DIR`.

One thread: supervisors ask the kernel to end with the *thread* that started them (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.dispatch import attempt as attempts
from orchestrator.dispatch.attempt import RunningAttempt
from orchestrator.dispatch.cancel import read_cancelled
from orchestrator.dispatch.journal import ENDED, STARTED, Event, write_event
from orchestrator.dispatch.launcher import Launcher
from orchestrator.dispatch.liveness import (
    CANCELLED,
    DRIVER_FILE,
    FAILED,
    FINISHED,
    RUNNING,
    DriverState,
    pid_start_time,
    take_driver_lock,
)
from orchestrator.dispatch.local import LocalLauncher
from orchestrator.dispatch.queue import Made, open_slots, startable
from orchestrator.records import layout
from orchestrator.records.jsonfile import decode, read_json, write_json
from orchestrator.records.spec import AttemptRecord, Batch

HEARTBEAT_SECONDS = 5.0
_TICK_SECONDS = 0.5


class Interruption:
    """Signals that ask the driver to end, and the wake-up that they and ending children cause."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _only_wake)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._cancel)

    def wait(self, seconds: float) -> None:
        """Sleep until a signal arrives, or for this long."""
        select.select([self._read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):  # nothing had woken it
            os.read(self._read, 4096)

    def _cancel(self, number: int, frame: FrameType | None) -> None:
        self.reason = attempts.CANCELLED


def _only_wake(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal reaches the wake-up descriptor."""


class Driver:
    """Works one batch down."""

    def __init__(self, batch_dir: Path, batch: Batch, launcher: Launcher, interruption: Interruption) -> None:
        self._dir = batch_dir
        self._batch = batch
        self._launcher = launcher
        self._interruption = interruption
        self._running: list[RunningAttempt] = []
        self._made: list[Made] = []
        self._dropped: frozenset[str] = frozenset()
        self._started_at = time.time()
        self._said_at = 0.0

    def run(self) -> str:
        """Run every trial that is open; the state it ended in."""
        self._say(RUNNING)
        self._made = attempts.made_before(self._batch, self._launcher)
        while True:
            self._heed_cancellation()
            changed = self._finish_ended()
            if self._interruption.reason is None:
                changed |= self._start_next()
            if not self._running and not (self._interruption.reason is None and self._open()):
                break
            if changed or time.time() - self._said_at >= HEARTBEAT_SECONDS:
                self._say(RUNNING)
            self._interruption.wait(_TICK_SECONDS)
        state = FINISHED if self._interruption.reason is None else CANCELLED
        self._say(state)
        return state

    def give_up(self, error: str) -> None:
        """End what runs and say that the driver itself failed."""
        try:
            for attempt in self._running:
                attempt.end(attempts.DRIVER_SIGNAL)
            while not all(attempt.poll() for attempt in self._running):
                self._interruption.wait(_TICK_SECONDS)
        finally:
            self._say(FAILED, error)

    def _open(self) -> list[int]:
        return open_slots(self._batch, self._made, self._dropped)

    def _heed_cancellation(self) -> None:
        everything, trials = read_cancelled(self._dir)
        if everything and self._interruption.reason is None:
            self._interruption.reason = attempts.CANCELLED
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
            self._running.remove(attempt)
            self._made.append(Made(attempt.slot, fate))
            self._note(
                ENDED,
                record,
                seconds=(record.ended_at or record.started_at) - record.started_at,
                label=outcome.label,
                cut_short=record.cut_short,
                retried=attempt.slot in self._open(),
                done=len(self._batch.trials) - len(self._open()),
                total=len(self._batch.trials),
            )
        return bool(ended)

    def _start_next(self) -> bool:
        slots = startable(self._batch, self._made, [attempt.slot for attempt in self._running], self._dropped)
        for slot in slots:
            attempt = attempts.begin(self._batch, slot, self._launcher)
            self._running.append(attempt)
            self._note(STARTED, attempt.record)
        return bool(slots)

    def _note(self, event: str, record: AttemptRecord, **more: Any) -> None:
        what = Event(time.time(), event, record.trial, record.attempt, record.name, record.role, **more)
        write_event(self._dir, what)
        print(f"{record.trial}/{record.attempt} {record.name}: {event} {what.label or ''}".rstrip(), flush=True)

    def _say(self, state: str, error: str | None = None) -> None:
        self._said_at = time.time()
        still_open = self._open()
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
                done=len(self._batch.trials) - len(still_open),
                total=len(self._batch.trials),
                current=[attempt.current for attempt in self._running],
                open_trials=[self._batch.trials[slot].trial for slot in still_open],
                error=error,
            ),
        )


def drive(batch_dir: Path, launcher: Launcher | None = None) -> str:
    """Run a batch in this process until nothing is left to do; the state it ended in.

    Raises:
        FormatError: the batch is damaged, or of a newer release.
        OSError: the results folder cannot be written.
    """
    interruption = Interruption()
    layout.check_private(batch_dir)
    batch = decode(Batch, read_json(batch_dir / layout.BATCH_FILE), str(batch_dir / layout.BATCH_FILE))
    driver = Driver(batch_dir, batch, launcher or launcher_of(batch), interruption)
    try:
        return driver.run()
    except Exception as error:
        traceback.print_exc()
        driver.give_up(f"{type(error).__name__}: {error}")
        raise


def launcher_of(batch: Batch) -> Launcher:
    """The way of starting ranks that a batch names.

    Raises:
        ValueError: this release has no such way.
    """
    kind = batch.launcher.get("kind")
    if kind == "local":
        return LocalLauncher(
            python=batch.launcher.get("python"),
            parallel_trials=batch.parallel_trials,
            setup=batch.launcher.get("setup") or (),
        )
    raise ValueError(f"batch {batch.batch}: no launcher is called {kind!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.dispatch.driver", description=__doc__)
    parser.add_argument("batch_dir", type=Path)
    parser.add_argument("--lock-fd", type=int, help="descriptor of the batch's lock, held already")
    given = parser.parse_args(arguments)
    if given.lock_fd is None and take_driver_lock(given.batch_dir) is None:
        print(f"{given.batch_dir}: another driver is working on this batch", file=sys.stderr)
        return 1
    drive(given.batch_dir)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
