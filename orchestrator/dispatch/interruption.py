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

        `reasons` finds the reason for a signal, outside of its handler. A first signal stays.
        """
        self._number: int | None = None
        self._reason: str | None = None
        self._reasons = reasons or {signal.SIGTERM: lambda: CANCELLED, signal.SIGINT: lambda: CANCELLED}
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _only_wake)
        signal.signal(signal.SIGCONT, _only_wake)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in self._reasons:
            signal.signal(number, self._interrupt)

    @property
    def reason(self) -> str | None:
        """Why the driver is to end; None while it is not."""
        if self._reason is None and self._number is not None:
            self._reason = self._reasons[self._number]()
        return self._reason

    def end(self, reason: str) -> None:
        """Have the driver end for a reason that no signal brought."""
        self._reason = self._reason or reason

    def wait(self, seconds: float) -> None:
        """Sleep until a signal arrives, or for this long."""
        select.select([self._read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):  # nothing had woken it
            os.read(self._read, 4096)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._number is None:
            self._number = number


def _only_wake(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal reaches the wake-up descriptor."""
