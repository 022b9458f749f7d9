"""What a rank that stands still was doing, by the stacks that its trainer printed (Python's faulthandler)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.records.stacks import asleep_in


class Doing(Enum):
    """What keeps a rank from going on."""

    WAITS = "waits for another rank"
    LOCKED = "waits for a lock that another may hold"
    DEVICE = "waits for its device"
    STUCK = "is busy with something of its own"
    UNCLEAR = "stands still, and its stacks do not say what for"


@dataclass(frozen=True)
class WaitRule:
    """Frames that only ever wait for another rank: whoever is in one is not the one that is waited for."""

    id: str
    file: str
    """Is found in the path."""
    example: SourceFrame
    """A real one."""

    def matches(self, frame: SourceFrame) -> bool:
        return _compiled(self.file).search(frame.file) is not None


WAIT_RULES = (
    WaitRule(
        "wait.collective",
        r"torch/distributed/(?:distributed_c10d|_functional_collectives)\.py$",
        SourceFrame("torch/distributed/distributed_c10d.py", "all_reduce"),
    ),
    WaitRule(
        "wait.rendezvous",
        r"torch/distributed/rendezvous\.py$",
        SourceFrame("torch/distributed/rendezvous.py", "_create_c10d_store"),
    ),
    WaitRule(
        "wait.pipeline",
        r"core/pipeline_parallel/p2p_communication\.py$",
        SourceFrame("megatron/core/pipeline_parallel/p2p_communication.py", "_communicate"),
    ),
    WaitRule(
        "wait.settled-collective",
        r"trial/mcore_cpu/collectives\.py$",
        SourceFrame("orchestrator/trial/mcore_cpu/collectives.py", "wait"),
    ),
)

_THREAD = re.compile(r"^(Current thread|Thread|Stack)(?: 0x[0-9a-f]+.*)? \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?:\d+|\?+) in (?P<function>.*)$')
_NO_FRAMES = ("  <no Python frame>", "  ...")
_STANDARD_LIBRARY = re.compile(r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)|^<frozen ")
_BLOCKING = re.compile(
    r"/(?:threading|queue|selectors|socket|ssl|subprocess|zipfile|tarfile|shutil|tempfile)\.py$|"
    r"/(?:multiprocessing|concurrent/futures|asyncio|http|urllib|importlib)/|^<frozen importlib|"
    r"torch/utils/data/|core/datasets/"
)
"""Where a process that drives a GPU waits for a file, a child or a socket, and not for its device."""
_THREADS = re.compile(r"/(?:threading|queue)\.py$|/concurrent/futures/")
"""Where a thread waits for another one of its process."""
_LOCK_FILES = re.compile(r"/filelock/|torch/utils/(?:file_baton|_filelock)\.py$")
"""Look again and again whether another process gave up its lock."""
_LOCK_CALLS = frozenset(("flock", "fcntl"))
_DEVICE = SourceFrame("torch/cuda/", "synchronize")
"""A wait for the device, by its own name. What the device waits for, nobody says."""
_OF_ITS_OWN = frozenset(
    (
        *("pause", "nanosleep", "clock_nanosleep", "select", "pselect6", "wait4", "waitid"),
        *("open", "openat", "read", "pread64", "write", "pwrite64", "fsync", "fdatasync", "close"),
        *("stat", "newfstatat", "statx", "getdents64"),
        *("mkdir", "mkdirat", "rename", "renameat2", "unlink", "unlinkat"),
    )
)
"""System calls that no wait for a device or another rank sleeps in: a pause, a child, a file."""
_OUTERMOST = frozenset(("<module>", "_run_module_as_main", "main"))
"""Where the main thread of a trainer begins."""
_RUNS_BACKWARD = "_engine_run_backward"
"""Where a GPU's backward runs on a thread of its own, the caller waits here (torch/autograd/graph.py)."""


def doing(stacks: str, device: str | None) -> tuple[Doing, SourceFrame | None]:
    """What the trainer was doing, and the frame that says so, None where none does.

    Args:
        stacks: of all its threads, as faulthandler prints them, after the line of `records.stacks` if there is one.
        device: `cpu` or `cuda`; None for a trainer that had not got as far. A process that drives a GPU can wait for
            the device anywhere, and the device for another rank: there only certain frames say anything, and the
            system call in which it sleeps.
    """
    threads = list(_threads(stacks.splitlines()))
    frames = _of_the_trainer(threads)
    own = _own(frames)
    if own is None:  # cut off, or nothing of a trainer
        return Doing.UNCLEAR, None
    if _waits(own):
        return Doing.WAITS, own
    asleep = asleep_in(stacks)
    if _LOCK_FILES.search(own.file) or asleep in _LOCK_CALLS:
        return Doing.LOCKED, own
    if device == "cuda" and _DEVICE.file in frames[0].file and frames[0].function == _DEVICE.function:
        return Doing.DEVICE, frames[0]
    if _THREADS.search(frames[0].file):
        others = (_own(thread.frames) for thread in threads)
        waiting = next((frame for frame in others if frame is not None and _waits(frame)), None)
        if waiting is not None:
            return Doing.WAITS, waiting
    if device != "cuda" or _BLOCKING.search(frames[0].file) or asleep in _OF_ITS_OWN:
        return Doing.STUCK, own
    return Doing.UNCLEAR, None


def _own(frames: Iterable[SourceFrame]) -> SourceFrame | None:
    """The innermost frame outside of the standard library."""
    return next((frame for frame in frames if not _STANDARD_LIBRARY.search(frame.file)), None)


def _waits(frame: SourceFrame) -> bool:
    return any(rule.matches(frame) for rule in WAIT_RULES)


@dataclass(frozen=True)
class _Thread:
    current: bool
    """It took the signal that made the process print."""
    frames: tuple[SourceFrame, ...]
    """Innermost first."""


def _threads(lines: Iterable[str]) -> Iterator[_Thread]:
    """Those that were printed in one piece. What else a trainer prints meanwhile may tear a frame out of a thread, and
    the one that called it would be taken for what it does."""
    current, frames, torn = None, list[SourceFrame](), False
    for line in (*lines, ""):
        head, frame = _THREAD.match(line), _FRAME.match(line)
        if head is not None or not line:
            if current is not None:
                yield _Thread(current, tuple(frames))
            current, frames, torn = head[1] != "Thread" if head is not None else None, [], False
        elif frame is None:
            torn = torn or line not in _NO_FRAMES
        elif torn:
            current = None
        else:
            frames.append(SourceFrame(frame["file"], frame["function"]))


def _of_the_trainer(threads: list[_Thread]) -> tuple[SourceFrame, ...]:
    """The frames of the thread that trains, innermost first; empty where it cannot be told apart.

    It is the one that took the signal, or the one that began as a program does: other threads of Python end in
    `_bootstrap`, and so would the last one that was printed, had it been printed whole.
    """
    # The last of what was printed: a trainer may have been asked twice.
    found = [thread for thread in reversed(threads) if thread.frames and thread.frames[-1].function != "_bootstrap"]
    main = next((thread for thread in found if thread.current), None)
    if main is None:
        main = next((thread for thread in found if thread.frames[-1].function in _OUTERMOST), None)
    if main is None:
        return ()
    if main.frames[0].function == _RUNS_BACKWARD:
        # Torch runs a GPU's backward on threads that are not Python's own.
        main = next((thread for thread in found if thread.frames[0].function != _RUNS_BACKWARD), main)
    return main.frames


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
