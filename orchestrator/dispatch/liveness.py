"""Whether a driver is still alive: by the lock it holds until it dies, and by its pid and start time."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.records.jsonfile import FormatError, decode, read_json

DRIVER_FILE = "driver.json"
LOCK_FILE = "driver.lock"

SUBMITTING = "submitting"
SUBMITTED = "submitted"
RUNNING = "running"
FINISHED = "finished"
CANCELLED = "cancelled"
UNFINISHED = "unfinished"
"""The job's time or nodes did not suffice for all trials."""
FAILED = "failed"
LOST = "lost"


@dataclass(frozen=True)
class CurrentTrial:
    """A trial that a driver is running now. `since` is unix seconds."""

    trial: str
    attempt: str
    name: str
    role: str
    since: float
    beacon_dir: str
    run_dir: str
    stage: str | None = None
    """Where the slowest rank on the driver's node was at the heartbeat; None where it could not be read."""
    iteration: int | None = None


@dataclass(frozen=True)
class DriverState:
    """What a driver says of itself, beside its batch. Times are unix seconds."""

    SCHEMA: ClassVar[int] = 1

    batch: str
    pid: int
    pid_started: int
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat): tells a reused pid from the driver's."""
    host: str
    started_at: float
    heartbeat: float
    state: str
    done: int
    total: int
    current: list[CurrentTrial] = field(default_factory=list)
    open_trials: list[str] = field(default_factory=list)
    """Trials that have not had their last attempt here; running ones included."""
    held_back: list[str] = field(default_factory=list)
    """Trials that were not started, since the control before them and another trial behind it never began."""
    error: str | None = None
    job: dict[str, Any] | None = None
    """The Slurm job that the driver runs in."""
    schema: int = SCHEMA


def read_driver_state(batch_dir: Path) -> DriverState | None:
    """What the batch's driver last said of itself; None where it never began.

    Raises:
        FormatError: the file is damaged or of a newer release.
    """
    try:
        return decode(DriverState, read_json(batch_dir / DRIVER_FILE), str(batch_dir / DRIVER_FILE))
    except FileNotFoundError:
        return None


def pid_start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None where there is no such process, or only its zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def take_driver_lock(batch_dir: Path) -> int | None:
    """Lock a batch for its driver; the descriptor, or None where another holds it.

    The lock belongs to the open file, so a driver that inherits the descriptor holds it from before its first
    instruction until the kernel has ended it, however that happens.

    Raises:
        OSError: the folder cannot be written, or its file system has no locks.
    """
    return _lock(batch_dir, fcntl.LOCK_EX)


def is_alive(batch_dir: Path) -> bool:
    """Whether a batch's driver lives on a machine that can be asked: this one, or any that shares file locks."""
    try:
        # Shared, so that two who ask at once do not take each other for the driver.
        descriptor = _lock(batch_dir, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False  # a driver has its lock before it begins
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
        return _is_alive_by_pid(batch_dir)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _lock(batch_dir: Path, kind: int) -> int | None:
    # Who only asks needs to write nothing: the folder may be read-only.
    mode = os.O_RDONLY if kind == fcntl.LOCK_SH else os.O_RDWR | os.O_CREAT
    descriptor = os.open(batch_dir / LOCK_FILE, mode | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return descriptor


def _is_alive_by_pid(batch_dir: Path) -> bool:
    try:
        state = read_driver_state(batch_dir)
    except FormatError:
        return False
    if state is None or state.host != socket.gethostname():
        return False
    return pid_start_time(state.pid) == state.pid_started
