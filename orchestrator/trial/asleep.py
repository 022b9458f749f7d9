"""The system call in which a process's main thread sleeps: what its Python stack leaves out.

Under CUDA any line may be waiting for the device, and the stack of a rank that sleeps looks no different. The device is
waited for in a spin or in ioctl, poll and futex; a pause, a child, a lock or a file in calls of their own.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_CALLS = {
    "x86_64": {0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 7: "poll", 16: "ioctl", 17: "pread64"}
    | {18: "pwrite64", 23: "select", 34: "pause", 35: "nanosleep", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync"}
    | {75: "fdatasync", 82: "rename", 83: "mkdir", 87: "unlink", 202: "futex", 217: "getdents64"}
    | {230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 270: "pselect6"}
    | {271: "ppoll", 281: "epoll_pwait", 332: "statx"},
    "aarch64": {22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat", 56: "openat"}
    | {57: "close", 61: "getdents64", 63: "read", 64: "write", 67: "pread64", 68: "pwrite64", 72: "pselect6"}
    | {73: "ppoll", 79: "newfstatat", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep"}
    | {115: "clock_nanosleep", 260: "wait4", 276: "renameat2", 291: "statx"},
}
"""Numbers of the calls that a process sleeps in for long (asm/unistd.h of each machine)."""
MOST_WAKES = 1
"""Of a thread that sleeps, in a third of a second. Libraries wait for a device or another rank in naps of milliseconds
(NCCL's groups, torch's blocking waits), which are no sleep."""


@dataclass(frozen=True)
class Sleep:
    """A look at a thread that sleeps. `wakes` counts how often it has gone to sleep so far."""

    call: str
    wakes: int


def sleep_of(pid: int, proc: Path = Path("/proc")) -> Sleep | None:
    """The call's name, or its number where it is none of the usual; None where the main thread runs, or nobody says.

    Linux shows it to the process's own user and, with Yama, to its ancestors (proc_pid_syscall(5)).
    """
    try:
        # The name of the program, in parentheses, may hold anything.
        state = _read(proc / str(pid) / "stat").rpartition(")")[2].split()[0]
        number = _read(proc / str(pid) / "syscall").split()[0]
        status = _read(proc / str(pid) / "status")
        wakes = next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches:")
        )
    except (OSError, IndexError, ValueError, StopIteration):
        return None
    if state not in "SD" or not number.isdecimal():
        return None
    return Sleep(_CALLS.get(platform.machine(), {}).get(int(number), number), wakes)


def slept_in(before: Sleep | None, after: Sleep | None) -> str | None:
    """The call in which a thread slept all the time between two looks at it, a third of a second apart."""
    if before is None or after is None or before.call != after.call or after.wakes - before.wakes > MOST_WAKES:
        return None
    return before.call


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
