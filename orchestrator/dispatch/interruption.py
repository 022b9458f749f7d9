"""Signals that reach a driver: what asks it to end, and what only wakes it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Mapping
from types import FrameType

from orchestrator.dispatch.attempt import CANCELLED


class Interruption:
    """Why the driver is to end, as soon as there is a reason; and the sleep from which every signal wakes it."""

    def __init__(self, reasons: Mapping[int, Callable[[], str]] | None = None) -> None:
        """Install the handlers; by default SIGTERM and SIGINT cancel.

        `reasons` gives the reason for a signal at the moment it arrives. A first reason stays.
        """
        self.reason: str | None = None
        self._reasons = reasons or {signal.SIGTERM: lambda: CANCELLED, signal.SIGINT: lambda: CANCELLED}
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _only_wake)
        signal.signal(signal.SIGCONT, _only_wake)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in self._reasons:
            signal.signal(number, self._interrupt)

    def wait(self, seconds: float) -> None:
        """Sleep until a signal arrives, or for this long."""
        select.select([self._read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):  # nothing had woken it
            os.read(self._read, 4096)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.reason is None:
            self.reason = self._reasons[number]()


def _only_wake(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal reaches the wake-up descriptor."""
