"""Whether a trial can still finish before its job's time limit. Pure."""

from __future__ import annotations

from collections.abc import Sequence

SAFETY = 1.25
"""How much longer than the longest trial so far the next one may take."""


def needed_seconds(durations: Sequence[float], time_limit: float | None) -> float:
    """How long the next trial may take: by the trials that ended here, and never more than its own limit.

    Where none has ended yet, its own limit; nothing where it has none, since only running it can tell.
    """
    if not durations:
        return time_limit or 0.0
    longest = max(durations) * SAFETY
    return longest if time_limit is None else min(longest, time_limit)


def fits(seconds_left: float | None, durations: Sequence[float], time_limit: float | None, margin: float) -> bool:
    """Whether a trial can be started. `margin` is what the driver needs for itself before the job ends."""
    if seconds_left is None:
        return True
    return needed_seconds(durations, time_limit) + margin <= seconds_left
