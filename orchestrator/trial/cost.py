"""What recording may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COST_LIMIT = 0.005
"""Share of the step that recording may cost inside the steady window; past it, it pauses there."""


@dataclass(frozen=True)
class Cost:
    """Seconds that recording took of some steps, and the seconds of those steps."""

    recording: float = 0.0
    steps: float = 0.0

    def plus(self, other: Cost) -> Cost:
        """Of both."""
        return Cost(self.recording + other.recording, self.steps + other.steps)

    @property
    def share(self) -> float | None:
        """What recording took of the steps; None where there are none."""
        return self.recording / self.steps if self.steps > 0 else None


def affordable(window: Cost, whole: Sequence[Cost], limit: float = COST_LIMIT) -> bool:
    """Whether the next iteration of the steady window can be recorded whole, with recording below `limit` of all of the
    window so far. Where it cannot always, it can now and then: what paused iterations did not cost adds up.

    Args:
        window: of the window's iterations so far.
        whole: of each of some iterations that were recorded whole. The first of a run does not belong there: it is
            longer than the rest, which would excuse too much, and marks what happens only once (the optimizer's first
            state), which would forbid too much.
    """
    if not whole:
        return True
    recording, steps = sum(one.recording for one in whole), sum(one.steps for one in whole)
    found = window.plus(Cost(recording / len(whole), steps / len(whole))).share
    return found is None or found <= limit
