"""What recording may cost."""

from __future__ import annotations

from collections.abc import Sequence

COST_LIMIT = 0.005
"""Share of the step that recording may cost inside the steady window; past it, it pauses there."""


def too_dear(costs: Sequence[tuple[float, float]], limit: float = COST_LIMIT) -> bool:
    """Whether recording took more than `limit` of the steps so far, given (recorder, step) seconds of each.

    The first step is left out where there are others: it is longer than the rest, and would excuse too much.
    """
    counted = costs[1:] or costs
    return sum(cost for cost, _ in counted) > limit * sum(step for _, step in counted)
