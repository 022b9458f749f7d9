"""Whether a trainer still moves, and whether its time is up."""

from __future__ import annotations

from orchestrator.records.beacon import FLAG_UNWINDING, BeaconHead
from orchestrator.records.rank import ENDED_STALL, ENDED_TIME_LIMIT

UNWIND_SECONDS = 10.0
"""How long a trainer may take to end after an exception left a stage. Frameworks clean up then, and hang in it where
another rank has failed."""
OVERSLEPT_SECONDS = 5.0
"""A longer gap between two looks means that we did not run, a suspended job for one: nor did the trainer."""

PATIENCE_LEFT = 0.2
"""The last part of `stall_seconds`. Ranks that wait for one another stop within a step of each other, so a trainer that
is asked where it is this early is asked before the first of them is ended, and the rest with it."""

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
        still = self._still(now)
        if head is not None and head.flag(FLAG_UNWINDING) and still >= min(UNWIND_SECONDS, self._stall_seconds):
            return HUNG_AFTER_RAISE
        if self._time_limit_seconds is not None and now - self._started >= self._time_limit_seconds:
            return ENDED_TIME_LIMIT
        if still >= self._stall_seconds:
            return ENDED_STALL
        return None

    def about_to_stall(self, now: float) -> bool:
        """Whether the trainer has stood still for so long that it is time to ask where it is."""
        return self._still(now) >= (1 - PATIENCE_LEFT) * self._stall_seconds

    def _still(self, now: float) -> float:
        return now - self._moved
