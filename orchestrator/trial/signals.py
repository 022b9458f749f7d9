"""The signals that a supervisor hears."""

from __future__ import annotations

import signal
import socket
from types import FrameType

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Each of these asks it to end."""


class Signals:
    """Wakes whoever selects on it: somebody asked to end, or a child ended. USR2 is ignored, here and in the trainer:
    Slurm sends it to whole jobs, to warn the driver."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._near, self._far = socket.socketpair()

    def __enter__(self) -> Signals:
        for end in (self._near, self._far):
            end.setblocking(False)
        signal.set_wakeup_fd(self._far.fileno(), warn_on_full_buffer=False)
        for number in ASKING:
            signal.signal(number, self._ask)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        # Whoever starts us may have blocked them until somebody listens (see __main__).
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.set_wakeup_fd(-1)
        self._near.close()
        self._far.close()

    def fileno(self) -> int:
        return self._near.fileno()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number)
