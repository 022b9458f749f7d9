"""What recording may cost."""

from __future__ import annotations

from collections.abc import Sequence

COST_LIMIT = 0.005
"""Share of the step that recording may cost inside the steady window; past it, it pauses there."""


def affordable(
    window: Sequence[tuple[float, float]], whole: Sequence[tuple[float, float]], limit: float = COST_LIMIT
) -> bool:
    """Whether the next iteration of the steady window can be recorded whole, with recording below `limit` of all of the
    window so far. Where it cannot always, it can now and then: what paused iterations did not cost adds up.

    Args:
        window: (recorder, step) seconds of the window's iterations so far.
        whole: those of iterations that were recorded whole. The first of a run does not belong there: it is longer
            than the rest, which would excuse too much, and marks what happens only once (the optimizer's first state),
            which would forbid too much.
    """
    if not whole:
        return True
    expected = sum(cost for cost, _ in whole) / len(whole), sum(step for _, step in whole) / len(whole)
    found = share([*window, expected])
    return found is None or found <= limit


def share(costs: Sequence[tuple[float, float]]) -> float | None:
    """What recording took of these steps, given (recorder, step) seconds of each; None where there are none."""
    steps = sum(step for _, step in costs)
    return sum(cost for cost, _ in costs) / steps if steps > 0 else None
