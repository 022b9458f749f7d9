"""Which lines of a log are looked at: those with one of a few words, found at a large part of memory's speed.

A search for alternatives that all begin with rare characters takes one pass however many they are, and capitals are
rare in logs; each word in small letters takes a pass of its own, so there are few.
"""

from __future__ import annotations

import re

_CAPITAL = (
    r'File ["/]|Traceback|Error|ERROR|Exception|Fatal|Exit|E\d{4} |\[E\d|ECC|'
    r"NCCL WARN|NCCL INFO init\.cc|NVRM|NVLink|Xid|NODE_FAIL|NODE FAIL|Node failure|No space left|NaN\b|NAN\b|INF\b|"
    r"CANCELLED|Connection|Current thread|Caught signal|Cannot|Cuda failure|CUBLAS_STATUS|CUDNN_STATUS|"
    r"SIG[A-Z]|Signal|Segfault|Segmentation|Socket|Stack \(most|State=|"
    r"Kill|KeyboardInterrupt|Abort|Assertion `|Out of memory|Out Of Memory|Out[A-Z]\w+|OUT_OF_MEMORY|OOM|"
    r"Broken pipe|PREEMPT|Preempt|Watchdog|Worker |Heartbeat|TERM_|TIME LIMIT|Timed out|Timeout|Terminat|"
    r"Thread 0x|Root Cause|RESOURCE_EXHAUSTED|Received|Failed|FAILED|Unexpected result|Unable to|Did not get|"
    r"Bus error|BOOT_FAIL|Disk quota|Read-only|Permission denied|Invalid __global|Minimum loss scale|Job step aborted|"
    r"Memory access fault|MPI_ABORT|GPU is lost"
)
CAPITALS = re.compile(_CAPITAL.encode())
SMALL = tuple(
    word.encode()
    for word in (
        "error",
        "failed",
        "out of memory",
        "exitcode",
        "return code = -",
        "killed",
        "signal",
        "timed out",
        "preempted",
        "segfault at",
        "command not found",
        "terminate",
        "oss: nan",
        "oss': nan",
        "oss': inf",
    )
)
NUMBERS = (
    re.compile(rb"number of nan iterations: +[1-9]"),
    re.compile(rb"number of skipped iterations: +[1-9]"),
)
"""In progress lines, of which a log has millions: only those that spoil a run, and one a block."""
