"""Which lines of a log are looked at: those with one of a few words, found at a large part of memory's speed.

A search for alternatives that begin with rare characters takes one pass however many they are, and capitals are rare
in logs; each word in small letters takes a pass of its own, so there are few.
"""

from __future__ import annotations

import re
from itertools import groupby

_CAPITAL = (
    *("Abort", "Assertion `", "BOOT_FAIL", "Broken pipe", "Bus error"),
    *("CANCELLED", "CUBLAS_STATUS", "CUDNN_STATUS", "Cannot", "Caught signal", "Connection", "Cuda failure"),
    *("Current thread", "Did not get", "Disk quota", "ECC", "ERROR", "Error", "Exception", "Exit"),
    *("FAILED", "Failed", "Fatal", 'File "', "File /", "GPU is lost", "Heartbeat", "Invalid __global"),
    *("Job step aborted", "KeyboardInterrupt", "Kill", "MPI_ABORT", "Memory access fault", "Minimum loss scale"),
    *("NAN", "NCCL INFO init.cc", "NCCL WARN", "NODE FAIL", "NODE_FAIL", "NVLink", "NVRM", "NaN", "No space left"),
    *("Node failure", "OOM", "OUT_OF_MEMORY", "Out Of Memory", "Out of memory", "OutOf", "PBS", "PREEMPT"),
    *("Permission denied", "Preempt", "RESOURCE_EXHAUSTED", "Read-only", "Received", "Root Cause"),
    *("SIG", "Segfault", "Segmentation", "Signal", "Socket", "Stack (most", "State=", "TERM_", "TIME LIMIT"),
    *("Terminat", "Thread 0x", "Timed out", "Timeout", "Traceback", "Unable to", "Unexpected result"),
    *("Watchdog", "Worker ", "Xid"),
)
_PATTERNS = (r"E\d{4} ", r"\[E\d", r"INF\b")
"""Lines of level error, and infinity but not the level of information."""


def _by_first_letter(words: tuple[str, ...]) -> str:
    """One pattern, in which a letter that begins none of the words is dismissed at once."""
    groups = groupby(sorted(words), key=lambda word: word[0])
    return "|".join(f"{first}(?:{'|'.join(re.escape(word[1:]) for word in group)})" for first, group in groups)


CAPITALS = re.compile("|".join((_by_first_letter(_CAPITAL), *_PATTERNS)).encode())
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
        ": nan",
    )
)
NUMBERS = (
    re.compile(rb"number of nan iterations: +[1-9]"),
    re.compile(rb"number of skipped iterations: +[1-9]"),
)
"""In progress lines, of which a log has millions: only those that spoil a run, and one a block."""
