"""What recording may cost."""

from __future__ import annotations

from collections.abc import Sequence

COST_LIMIT = 0.005
"""Share of the step that recording may cost inside the steady window; past it, it pauses there."""


def too_dear(costs: Sequence[tuple[float, float]], limit: float = COST_LIMIT) -> bool:
    """Whether recording took more than `limit` of the steps so far, given (recorder, step) seconds of each.

    The first step says nothing: it is longer than the rest, which would excuse too much, and marks what happens only
    once (the optimizer's first state), which would forbid too much.
    """
    found = share(costs[1:])
    return found is not None and found > limit


def share(costs: Sequence[tuple[float, float]]) -> float | None:
    """What recording took of these steps, given (recorder, step) seconds of each; None where there are none."""
    steps = sum(step for _, step in costs)
    return sum(cost for cost, _ in costs) / steps if steps > 0 else None
