"""How losses of two runs of one model drift apart, and what that says of the arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

ROUNDING = 1e-4
"""Relative difference that another order of sums makes of a loss within the first two steps. On H200s, Moonlight and
Qwen3 in BF16 and Llama 3 in FP8 stayed below 2e-5 there (docs/evidence)."""


@dataclass(frozen=True)
class LossDrift:
    """Relative differences of two runs' losses at the iterations that both have."""

    by_iteration: Mapping[int, float]

    @property
    def largest(self) -> float:
        """At any iteration."""
        return max(self.by_iteration.values())

    def first_past(self, tolerance: float) -> int | None:
        """The first iteration that differs by more; None where none does."""
        return next((number for number in sorted(self.by_iteration) if self.by_iteration[number] > tolerance), None)

    @property
    def grew(self) -> bool:
        """Whether the first two iterations agree to rounding, so that the forward does. The second says little of the
        first gradients where the learning rate warms up from nothing."""
        first = sorted(self.by_iteration)[:2]
        return len(first) == 2 and all(self.by_iteration[number] <= ROUNDING for number in first)


def loss_drift(losses: Mapping[int, float], others: Mapping[int, float]) -> LossDrift | None:
    """Of two runs; None where they have no iteration in common whose loss is not zero."""
    both = sorted(losses.keys() & others.keys())
    found = {number: abs(losses[number] - others[number]) / abs(others[number]) for number in both if others[number]}
    return LossDrift(found) if found else None


def own_drift(runs: Iterable[Mapping[int, float]]) -> float | None:
    """The most that runs of one setting differ among themselves; None of fewer than two."""
    pairs = [loss_drift(one, other) for one, other in combinations(list(runs), 2)]
    return max((pair.largest for pair in pairs if pair is not None), default=None)
