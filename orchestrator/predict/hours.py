"""GPU-hours of trials: what a plan will take, what was spent, and what a search saved against the whole grid. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_IMPORT, _SETUP = 23.0, 4.0
"""Seconds of a trial of 5.3 B parameters on one H200: imports of Megatron Bridge, and building the model."""
_FIRST = (9.0, 30.0)
"""Seconds of its first iteration, which compiles kernels."""
_STEP_UNKNOWN = (0.2, 30.0)


@dataclass(frozen=True)
class Hours:
    """GPU-hours, and between what they may lie."""

    expected: float
    low: float
    high: float

    def __add__(self, other: Hours) -> Hours:
        return Hours(self.expected + other.expected, self.low + other.low, self.high + other.high)


def trial_hours(world_size: int, iterations: int, step_seconds: float | None) -> Hours:
    """GPU-hours of one trial: start-up, a slow first iteration, and the rest. Without a step time, a wide range."""
    low, high = (step_seconds, step_seconds) if step_seconds is not None else _STEP_UNKNOWN
    middle = step_seconds if step_seconds is not None else 2.0
    start = _IMPORT + _SETUP
    rest = max(0, iterations - 1)
    seconds = (
        start + sum(_FIRST) / 2 + rest * middle,
        start + _FIRST[0] + rest * low,
        2 * start + _FIRST[1] + rest * high,
    )
    return Hours(*(world_size * one / 3600 for one in seconds))


def spent_hours(attempts: Iterable[tuple[int, float | None, float | None]], now: float) -> float:
    """GPU-hours of executions, each of (ranks, start, end); one that has not ended counts until now."""
    return sum(
        ranks * max(0.0, (now if ended is None else ended) - started) / 3600
        for ranks, started, ended in attempts
        if started is not None
    )


def saved_hours(grid: Iterable[Hours], tried: Iterable[Hours]) -> float:
    """What the grid would have taken beyond the trials that were tried; never below zero."""
    return max(0.0, sum(one.expected for one in grid) - sum(one.expected for one in tried))
