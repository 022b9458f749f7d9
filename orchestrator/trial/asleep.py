"""The system call in which a process's main thread sleeps: what its Python stack leaves out.

Under CUDA any line may be waiting for the device, and the stack of a rank that sleeps looks no different. The device is
waited for in a spin or in ioctl, poll and futex; a pause, a child, a lock or a file in calls of their own.
"""

from __future__ import annotations

import platform
from pathlib import Path

_CALLS = {
    "x86_64": {0: "read", 7: "poll", 16: "ioctl", 23: "select", 34: "pause", 35: "nanosleep", 61: "wait4", 72: "fcntl"}
    | {73: "flock", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat"}
    | {270: "pselect6", 271: "ppoll", 281: "epoll_pwait"},
    "aarch64": {22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 72: "pselect6"}
    | {73: "ppoll", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 260: "wait4"},
}
"""Numbers of the calls that a process sleeps in for long (asm/unistd.h of each machine)."""


def sleeps_in(pid: int, proc: Path = Path("/proc")) -> str | None:
    """The call's name, or its number where it is none of the usual; None where the main thread runs, or nobody says.

    Linux shows it to the process's own user and, with Yama, to its ancestors (proc_pid_syscall(5)).
    """
    try:
        state = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        number = (proc / str(pid) / "syscall").read_text().split()[0]
    except (OSError, IndexError):
        return None
    if state not in "SD" or not number.isdecimal():
        return None
    return _CALLS.get(platform.machine(), {}).get(int(number), number)
