"""How long Python's garbage collector has stopped this process.

Training loops collect on a schedule of their own (`train.manual_gc_interval` of Megatron Bridge): on one H200 every
fifth step took 0.4 to 0.6 s longer than the 1.7 s of the others, which is most of what step times scatter by.
"""

from __future__ import annotations

import gc
import time


class GarbageClock:
    """Adds up what collections take, once it is among `gc.callbacks`. Two calls and two clock readings a collection."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started: float | None = None

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._started = now
        elif self._started is not None:
            self.seconds += now - self._started
            self._started = None


_CLOCK = GarbageClock()


def collecting_seconds() -> float:
    """Seconds that collections have taken since this was first asked, on any thread."""
    if _CLOCK not in gc.callbacks:
        gc.callbacks.append(_CLOCK)
    return _CLOCK.seconds
