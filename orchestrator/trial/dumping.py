"""The signals that make a trainer print its stacks to stderr, even while it hangs in C code."""

from __future__ import annotations

import faulthandler
import signal
import sys

ALL_THREADS = signal.SIGUSR1
ONE_THREAD = signal.SIGRTMAX
"""The thread that takes the signal, the main one unless it blocks it. Of all threads faulthandler prints a hundred, the
newest first."""


def answer_by_dumping() -> None:
    """Have this process print them, and on a fatal error too."""
    faulthandler.enable(sys.stderr)
    faulthandler.register(ALL_THREADS, sys.stderr, all_threads=True)
    faulthandler.register(ONE_THREAD, sys.stderr, all_threads=False)
