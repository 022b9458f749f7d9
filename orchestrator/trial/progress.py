"""Whether a trainer still moves, and whether its time is up."""

from __future__ import annotations

from orchestrator.records.beacon import FLAG_UNWINDING, BeaconHead
from orchestrator.records.rank import ENDED_STALL, ENDED_TIME_LIMIT

UNWIND_SECONDS = 10.0
"""How long a trainer may take to end after an exception left a stage. Frameworks clean up then, and hang in it where
another rank has failed."""
OVERSLEPT_SECONDS = 5.0
"""A longer gap between two looks means that we did not run, a suspended job for one: nor did the trainer."""

HUNG_AFTER_RAISE = "hung_after_raise"


class Progress:
    """Looks at a beacon's head now and then. Times are of a monotonic clock, passed in."""

    def __init__(self, now: float, stall_seconds: float, time_limit_seconds: float | None) -> None:
        self._stall_seconds = stall_seconds
        self._time_limit_seconds = time_limit_seconds
        self._started = self._moved = self._looked = now
        self._word: tuple[int, float] | None = None

    def look(self, now: float, head: BeaconHead | None) -> str | None:
        """Why the trainer is to be ended now: `stall`, `time_limit`, `hung_after_raise`; None while it may go on."""
        if now - self._looked > OVERSLEPT_SECONDS:
            self._moved += now - self._looked
        self._looked = now
        if head is not None and (head.word, head.at) != self._word:
            self._word, self._moved = (head.word, head.at), now
        still = now - self._moved
        if head is not None and head.flag(FLAG_UNWINDING) and still >= min(UNWIND_SECONDS, self._stall_seconds):
            return HUNG_AFTER_RAISE
        if self._time_limit_seconds is not None and now - self._started >= self._time_limit_seconds:
            return ENDED_TIME_LIMIT
        if still >= self._stall_seconds:
            return ENDED_STALL
        return None
