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

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?:\d+|\?+) in (?P<function>.*)$')
_STANDARD_LIBRARY = re.compile(r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)|^<frozen ")
_BLOCKING = re.compile(
    r"/(?:threading|queue|selectors|socket|ssl|subprocess|zipfile|tarfile|shutil|tempfile)\.py$|"
    r"/(?:multiprocessing|concurrent/futures|asyncio|http|urllib|importlib)/|^<frozen importlib|"
    r"torch/utils/data/|core/datasets/"
)
"""Where a process that drives a GPU waits for a file, a child or a socket, and not for its device."""
_DEVICE = SourceFrame("torch/cuda/", "synchronize")
"""A wait for the device, by its own name. What the device waits for, nobody says."""
_OF_ITS_OWN = frozenset(
    (
        "pause",
        "nanosleep",
        "clock_nanosleep",
        "select",
        "pselect6",
        "wait4",
        "waitid",
        "flock",
        "fcntl",
        "openat",
        "read",
    )
)
"""System calls that no wait for a device or another rank sleeps in: a pause, a child, a lock, a file."""
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
    frames = _of_the_trainer(list(_threads(stacks.splitlines())))
    own = next((frame for frame in frames if not _STANDARD_LIBRARY.search(frame.file)), None)
    if own is not None and any(rule.matches(own) for rule in WAIT_RULES):
        return Doing.WAITS, own
    if not frames:
        return Doing.UNCLEAR, None
    if device == "cuda" and _DEVICE.file in frames[0].file and frames[0].function == _DEVICE.function:
        return Doing.DEVICE, frames[0]
    if device != "cuda" or _BLOCKING.search(frames[0].file) or asleep_in(stacks) in _OF_ITS_OWN:
        return Doing.STUCK, own or frames[0]
    return Doing.UNCLEAR, None


@dataclass(frozen=True)
class _Thread:
    current: bool
    """It took the signal that made the process print."""
    frames: tuple[SourceFrame, ...]
    """Innermost first."""


def _threads(lines: Iterable[str]) -> Iterator[_Thread]:
    current, frames = None, list[SourceFrame]()
    for line in lines:
        head, frame = _THREAD.match(line), _FRAME.match(line)
        if frame is not None:
            frames.append(SourceFrame(frame["file"], frame["function"]))
        elif head is not None:
            if current is not None:
                yield _Thread(current, tuple(frames))
            current, frames = head[1] == "Current thread", []
    if current is not None:
        yield _Thread(current, tuple(frames))


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
