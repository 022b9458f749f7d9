"""Which lines of a log are looked at: those with one of a few words, found at a large part of memory's speed.

A search for alternatives that begin with rare characters takes one pass however many they are, and capitals are rare
in logs; each word in small letters takes a pass of its own, so there are few.
"""

from __future__ import annotations

import re
from functools import lru_cache

from orchestrator.outcome.catalogue import REMARK_RULES, RULES
from orchestrator.outcome.rule import SHAPED, any_of, shape_of

_CAPITAL = (
    *("Abort", "Assertion `", "BOOT_FAIL", "Broken pipe", "Bus error"),
    *(
        "CANCELLED",
        "CUBLAS_STATUS",
        "CUDNN_STATUS",
        "Cannot",
        "Caught signal",
        "Connection",
        "Could not",
        "Key '",
        "Cuda failure",
    ),
    *(
        "Current thread",
        "Dataset does not exist",
        "Did not get",
        "Disk quota",
        "ECC",
        "ERROR",
        "Errno",
        "Error",
        "Exception",
        "Exit",
    ),
    *(
        "FAILED",
        "FATAL",
        "Failed",
        "Fatal",
        "Found overflow",
        "Gradient overflow",
        "OVERFLOW!",
        'File "',
        "File /",
        "GPU is lost",
        "Heartbeat",
        "Invalid __global",
    ),
    *(
        "Job step aborted",
        "Job not requeued",
        "KeyboardInterrupt",
        "Kill",
        "MPI_ABORT",
        "Memory access fault",
        "Memory on the node",
        "Minimum loss scale",
    ),
    *(
        "NCCL INFO init.cc",
        "NCCL WARN",
        "NODE FAIL",
        "NODE_FAIL",
        "NVLink",
        "NVRM",
        "NaN",
        "No module named",
        "No space left",
    ),
    *("Node failure", "OOM", "OUT_OF_MEMORY", "Out Of Memory", "Out of memory", "OutOf", "PBS", "PREEMPT"),
    *("Permission denied", "Preempt", "RESOURCE_EXHAUSTED", "Read-only", "Received", "Root Cause"),
    *("SIG", "Segfault", "Segmentation", "Signal", "Socket", "Stack (most", "State=", "TERM_", "TIME LIMIT"),
    *("Terminat", "Thread 0x", "Timed out", "Timeout", "Traceback", "Unable to", "Unexpected result"),
    *("Watchdog", "Worker ", "Xid"),
)
_PATTERNS = (r"E\d{4} ", r"\[[EF][\d ]")
"""Lines of levels error and fatal."""

_FRAMES = frozenset({'File "', "File /", "Traceback"})

CAPITALS = re.compile("|".join((any_of(_CAPITAL), *_PATTERNS)).encode())
CAPITALS_BUT_FRAMES = re.compile("|".join((any_of(set(_CAPITAL) - _FRAMES), *_PATTERNS)).encode())
SMALL = tuple(
    word.encode()
    for word in (
        "error",
        "failed",
        "out of memory",
        "timed out",
        "preempted",
        "terminate called",
        "command not found",
        "│ /",
        ".py in ",
        "oom-kill",
        "size mismatch for",
        "corrupt",
        "(): invalid",
    )
)
NUMBERS = (
    re.compile(rb"number of nan iterations: +[1-9]"),
    re.compile(rb"number of skipped iterations: +[1-9]"),
    re.compile(rb": -?(?:nan|NAN|inf|INF)\b"),
    re.compile(rb"=nan\b"),
)
"""In progress lines, of which a log has millions: only those that spoil a run, and one a block."""
_SAYS_SOMETHING = re.compile(
    any_of(
        shape_of(word)
        for word in (
            *(needle for rule in (*RULES, *REMARK_RULES) for needle in rule.needles),
            *('File "', "File /", "Traceback", "most recent call first", "Exception ignored", "Root Cause"),
            *("would exceed allowed memory", "│ /", ".py in "),
        )
    )
    + r"|(?:Error|Exception|Interrupt|Exit|OutOfResources|Iteration)\w*(?:\([\w.]+\))?(?::|\s*$)"
)


def worth_a_look(line: str) -> bool:
    """Whether a line can say anything: it has words of a rule or of a traceback, numbers apart, or ends in a type."""
    return len(line) > SHAPED or _says_something(shape_of(line))


@lru_cache(maxsize=8192)
def _says_something(shape: str) -> bool:
    return _SAYS_SOMETHING.search(shape) is not None
