"""The supervisor of one rank: starts the trainer, outlives whatever ends it, and always leaves a record.

Standard library only, and one thread. It holds no device, no connection and some ten MB of memory, so nothing that
ends a trainer ends it too, short of a signal to itself; then the kernel kills the trainer (PR_SET_PDEATHSIG), and
the driver puts the record together from the beacon.
"""

from __future__ import annotations

import contextlib
import os
import platform
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.records import exitstatus, layout
from orchestrator.records.assemble import Ending, assemble
from orchestrator.records.beacon import FLAG_MEASURED, BeaconHead, read_head
from orchestrator.records.jsonfile import write_json
from orchestrator.records.rank import (
    ENDED_EXIT,
    ENDED_RUNNING,
    ENDED_SIGNAL,
    ENDED_STALL,
    ENDED_TERMINATED,
    ENDED_TIME_LIMIT,
    RankRecord,
)
from orchestrator.records.spec import TrialSpec
from orchestrator.records.stacks import asleep_line, is_whole
from orchestrator.trial.asleep import sleep_of, slept_in
from orchestrator.trial.cgroup import oom_kills
from orchestrator.trial.dumping import ALL_THREADS, ONE_THREAD
from orchestrator.trial.output import Output, drain
from orchestrator.trial.place import Place, child_environment
from orchestrator.trial.process import adopt_orphans, has_ended, hears, kill_descendants, send, start_trainer
from orchestrator.trial.progress import HUNG_AFTER_RAISE, UNWIND_SECONDS, Progress
from orchestrator.trial.signals import ASKING, Signals

LOOK_SECONDS = 0.2
"""How often the beacon is looked at. Signals and output wake the supervisor at once."""
KILL_SECONDS = 0.8
"""How long the record waits for a killed trainer; together with the rest it stays below two seconds."""
ASLEEP_SECONDS = 0.3
"""A trainer sleeps that slept for this long."""
DUMP_SECONDS = 0.5
"""How long a hung trainer may take to begin to print its stacks."""
QUIET_SECONDS, LONGEST_DUMP_SECONDS = 0.25, 3.0
"""Its stacks are whole when the thread that trains is printed to its end, or nothing more comes for this long: a
trainer on a GPU has dozens of threads, and the one that trains comes last."""
FREE_SECONDS = 60.0
"""How long the supervisor waits, its record written, for the kernel to free what a killed trainer held."""
WRITE_PAUSES = (0.1, 0.3)
"""Seconds between attempts to write a record where the run's folder refuses it."""

_STATUS = {
    ENDED_SIGNAL: exitstatus.EXIT_SIGNAL,
    ENDED_STALL: exitstatus.EXIT_STALL,
    ENDED_TIME_LIMIT: exitstatus.EXIT_TIME_LIMIT,
    ENDED_TERMINATED: exitstatus.EXIT_TERMINATED,
}


def supervise(spec: TrialSpec, spec_file: Path, place: Place) -> int:
    """Run one rank to its end, and leave its record. Returns an exit status of `records.exitstatus`."""
    started_at = time.time()
    kills_before = oom_kills()
    with Signals() as signals:
        output = Output(layout.rank_log(Path(spec.run_dir), place.rank))
        try:
            prepare_beacon_dir(spec, place.rank)
            adopt_orphans()
            child = start_trainer(spec_file, child_environment(spec, place, os.environ))
        except (OSError, subprocess.SubprocessError) as error:
            message = f"the trainer could not be started: {error}"
            print(f"rank {place.rank}: {message}", file=sys.stderr)
            ending = Ending(ENDED_EXIT, started_at, time.time(), exitstatus.EXIT_USAGE, stderr_tail=message)
            output.close()
            return _leave_final(spec, place, ending)
        watch = _Watch(spec, place, child, output, signals, started_at)
        ending = watch.until_the_end()
        kills = oom_kills()
        if kills is not None and kills_before is not None:
            ending = replace(ending, host_oom_kills=kills - kills_before)
        status = _leave_final(spec, place, ending)
        output.close()
        _wait_until_gone(child)
    return status


def prepare_beacon_dir(spec: TrialSpec, rank: int) -> None:
    """Have a private node-local folder without remains of an earlier attempt.

    Raises:
        OSError: it cannot be made, or is not only ours.
    """
    folder = Path(spec.beacon_dir)
    if not folder.exists():
        layout.make_private_dir(folder)
    layout.check_private(folder)
    for path in (layout.beacon_file, layout.facts_file, layout.rank_file):
        path(folder, rank).unlink(missing_ok=True)


@dataclass
class _Watch:
    """One trainer, from its start to its end."""

    spec: TrialSpec
    place: Place
    child: subprocess.Popen[bytes]
    output: Output
    signals: Signals
    started_at: float

    def __post_init__(self) -> None:
        self._beacon = layout.beacon_file(Path(self.spec.beacon_dir), self.place.rank)
        self._progress = Progress(time.monotonic(), self.spec.stall_seconds, self.spec.time_limit_seconds)
        self._first_written = False
        self._notes: list[str] = []
        self._stacks = ""
        """What the trainer printed when it was asked where it is; empty once it has moved since."""
        self._asked_where = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.signals, selectors.EVENT_READ)
        for name, stream in (("stdout", self.child.stdout), ("stderr", self.child.stderr)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self._selector.register(stream, selectors.EVENT_READ, name)

    def until_the_end(self) -> Ending:
        """Wait for the trainer's end, or make one."""
        why = self._wait()
        if why is not None and why != ENDED_TERMINATED:
            self._ask_where(ALL_THREADS, signal.SIGABRT)
        send(self.child.pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        while not has_ended(self.child.pid) and time.monotonic() < deadline:
            self._take(0.02)
        ended_at = time.time()
        left = kill_descendants(deadline)
        self._take(0.0)
        self.output.finish()
        self._close()
        if left:
            self._notes.append(f"still there after SIGKILL, waiting for the kernel: {', '.join(map(str, left))}")
        code = self.child.wait() if has_ended(self.child.pid) else None
        return self._ending(why, code, ended_at)

    def _close(self) -> None:
        self._selector.close()
        for stream in (self.child.stdout, self.child.stderr):
            if stream is not None:
                stream.close()

    def _wait(self) -> str | None:
        """Why the trainer has to be ended; None when it ended by itself."""
        while not has_ended(self.child.pid):
            if self.signals.asked is not None:
                return ENDED_TERMINATED
            head = self._head()
            if head is not None and head.flag(FLAG_MEASURED) and not self._first_written:
                self._first_written = True
                self._write_first()
            why = self._progress.look(time.monotonic(), head)
            if why is not None:
                return why
            self._ask_before_it_is_too_late(head)
            self._take(LOOK_SECONDS)
        return None

    def _head(self) -> BeaconHead | None:
        try:
            return read_head(self._beacon)
        except OSError:
            return None  # as if it did not move: past `stall_seconds` it has to be taken for that

    def _take(self, seconds: float) -> None:
        """Take what the trainer prints, until something happens or the time is over; with 0, all there is now."""
        while True:
            ready = self._selector.select(seconds)
            for key, _ in ready:
                if key.data is None:
                    os.read(self.signals.fileno(), 4096)
                    continue
                data = drain(key.fd)
                if data is None:
                    self._selector.unregister(key.fileobj)
                elif data:
                    self.output.feed(key.data, data)
            if seconds or not ready:
                return

    def _write_first(self) -> None:
        """What was measured is safe from here on, whatever teardown does."""
        ending = Ending(ENDED_RUNNING, self.started_at, stderr_tail=self.output.tail)
        try:
            _write(Path(self.spec.run_dir), assemble(self.spec, self.place.rank, ending, self.place.local_rank))
        except OSError as error:
            self._notes.append(f"the record could not be written when the steady window ended: {error}")

    def _ask_before_it_is_too_late(self, head: BeaconHead | None) -> None:
        """Ask where the trainer is before it counts as hung: with it, those that it waits for are ended too, and which
        of them hangs is seen in what each was doing."""
        if not self._progress.about_to_stall(time.monotonic()):
            self._stacks, self._asked_where = "", False
        elif not self._asked_where and head is not None and hears(self.child.pid, ALL_THREADS):
            self._asked_where = True
            self._ask_where(ALL_THREADS)

    def _ask_where(self, *numbers: signal.Signals) -> None:
        """Have a trainer that stands still print its stacks, through the handlers of `trial.dumping`. SIGABRT, which
        faulthandler answers too, ends one that has none or lost it."""
        asleep = self._sleeps_in()
        for number in numbers:
            before = self.output.stderr_seen
            if self.signals.asked is not None:
                return
            send(self.child.pid, number)
            if self._begins_to_print(before):
                deadline = time.monotonic() + LONGEST_DUMP_SECONDS
                if not self._take_until_whole(before, deadline) and hears(self.child.pid, ONE_THREAD):
                    send(self.child.pid, ONE_THREAD)
                    self._take_until_whole(before, deadline)
                printed = self.output.printed_since(before).decode("utf-8", "replace")
                self._stacks = (asleep_line(asleep) if asleep is not None else "") + printed
                return

    def _sleeps_in(self) -> str | None:
        """The system call in which the trainer's main thread sleeps, and does not only nap."""
        first = sleep_of(self.child.pid)
        deadline = time.monotonic() + ASLEEP_SECONDS
        while first is not None and self._may_go_on(deadline):
            self._take(0.05)
        return slept_in(first, sleep_of(self.child.pid)) if self.signals.asked is None else None

    def _begins_to_print(self, before: int) -> bool:
        deadline = time.monotonic() + DUMP_SECONDS
        while self._may_go_on(deadline):
            self._take(0.05)
            if b"most recent call first" in self.output.printed_since(before):
                return True
        return False

    def _take_until_whole(self, before: int, deadline: float) -> bool:
        """Take the stacks until they are whole, or nothing more comes; whether they are."""
        quiet_since = time.monotonic()
        while not is_whole(self.output.printed_since(before)):
            if time.monotonic() - quiet_since >= QUIET_SECONDS or not self._may_go_on(deadline):
                return False
            seen = self.output.stderr_seen
            self._take(0.05)
            if self.output.stderr_seen != seen:
                quiet_since = time.monotonic()
        return True

    def _may_go_on(self, deadline: float) -> bool:
        """Whether there is time to look at the trainer: nobody waits for the record, and it has not ended."""
        return self.signals.asked is None and time.monotonic() < deadline and not has_ended(self.child.pid)

    def _ending(self, why: str | None, code: int | None, ended_at: float) -> Ending:
        notes = self._notes + self.output.notes
        exit_code = number = None
        if why is None and code is not None:
            if code >= 0:
                ended, exit_code = ENDED_EXIT, code
            elif -code in ASKING and self.signals.asked is not None:
                ended = ENDED_TERMINATED  # the whole step was signalled, and the trainer was quicker
            else:
                ended, number = ENDED_SIGNAL, -code
        elif why == HUNG_AFTER_RAISE:
            ended, exit_code = ENDED_EXIT, 1
            notes.append(
                f"the trainer had raised, and did nothing more for {min(UNWIND_SECONDS, self.spec.stall_seconds):g} s: "
                "it was killed"
            )
        else:
            ended = why or ENDED_SIGNAL
        if ended == ENDED_TERMINATED and self.signals.asked is not None:
            notes.append(f"asked to end by {self.signals.asked.name}")
        return Ending(ended, self.started_at, ended_at, exit_code, number, self.output.tail, self._stacks, notes=notes)


def _leave_final(spec: TrialSpec, place: Place, ending: Ending) -> int:
    record = assemble(spec, place.rank, ending, place.local_rank, platform.node())
    run_dir, beacon_dir = Path(spec.run_dir), Path(spec.beacon_dir)
    for pause in (*WRITE_PAUSES, None):
        try:
            _write(run_dir, record)
        except OSError as error:
            refused = error
            if pause is not None:
                time.sleep(pause)
        else:
            return _status(ending)
    reason = f"rank {place.rank}: its record cannot be written to {run_dir} ({refused.strerror or refused})"
    try:
        _write(beacon_dir, replace(record, notes=[*record.notes, reason]))
    except OSError as error:
        print(f"{reason}, nor to {beacon_dir} ({error.strerror or error}): it is lost", file=sys.stderr)
        return exitstatus.EXIT_NO_RECORD
    print(f"{reason}: it is in {layout.rank_file(beacon_dir, place.rank)}", file=sys.stderr)
    return exitstatus.EXIT_RECORD_ELSEWHERE


def _write(folder: Path, record: RankRecord) -> None:
    write_json(layout.rank_file(folder, record.rank), record)


def _status(ending: Ending) -> int:
    if ending.ended == ENDED_EXIT:
        return exitstatus.EXIT_OK if ending.exit_code == 0 else exitstatus.EXIT_FAILED
    return _STATUS[ending.ended]


def _wait_until_gone(child: subprocess.Popen[bytes]) -> None:
    """A step is over when its memory is free. A process that held a device can take seconds to leave the kernel."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(FREE_SECONDS)
