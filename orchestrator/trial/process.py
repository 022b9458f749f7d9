"""The trainer as a process of its supervisor: how it starts, and how it and all that it started are ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process `number` when the thread that started it ends.

    Raises:
        OSError: the kernel refuses.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets out of reach.

    Raises:
        OSError: the kernel refuses.
    """
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def start_trainer(spec_file: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the child that trains. It is killed when this process ends, however that happens.

    Raises:
        OSError: no process could be started.
    """
    supervisor = os.getpid()

    def before_exec() -> None:
        die_with_parent(signal.SIGKILL)
        if os.getppid() != supervisor:  # it ended between the fork and the line above
            os._exit(1)

    # preexec_fn is safe here: this process has one thread.
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "orchestrator.trial.child", str(spec_file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        preexec_fn=before_exec,
    )


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process of ours; one that has ended already needs none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def has_ended(pid: int) -> bool:
    """Whether a child has ended. It stays unreaped, so that its number cannot become somebody else's."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def hears(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal, which would end it otherwise."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def kill_descendants(deadline: float) -> list[int]:
    """Kill everything below this process, again until nothing is left; `deadline` is of `time.monotonic`.

    Returns what would not die in time.
    """
    while True:
        alive = descendants(os.getpid())
        for pid in alive:
            send(pid, signal.SIGKILL)
        if not alive or time.monotonic() >= deadline:
            return alive
        time.sleep(0.01)


def descendants(ancestor: int) -> list[int]:
    """The living processes below one, nearest first. Zombies are left out."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            state, parent = _state_and_parent(entry.path)
            if parent:
                children.setdefault(parent, []).append(int(entry.name))
            if state == "Z":
                ended.add(int(entry.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        nearest = children.get(waiting.pop(0), [])
        found += [pid for pid in nearest if pid not in ended]
        waiting += nearest
    return found


def _state_and_parent(folder: str) -> tuple[str, int]:
    try:
        text = (Path(folder) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended while the folder was read
        return "", 0
    # The name of the program, in parentheses, may hold anything.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)
