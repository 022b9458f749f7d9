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

    def beyond(self, own: LossDrift | None) -> LossDrift | None:
        """The iterations that differ by more than `own` has there; None where none does."""
        usual = {} if own is None else own.by_iteration
        found = {number: apart for number, apart in self.by_iteration.items() if apart > usual.get(number, 0.0)}
        return LossDrift(found) if found else None

    @property
    def grew(self) -> bool:
        """Whether iterations 1 and 2 agree to rounding, so that the forward does. The second says little of the first
        gradients where the learning rate warms up from nothing."""
        return all(self.by_iteration.get(number, 1.0) <= ROUNDING for number in (1, 2))


def loss_drift(losses: Mapping[int, float], others: Mapping[int, float]) -> LossDrift | None:
    """Of two runs; None where they have no iteration in common whose loss is not zero."""
    both = sorted(losses.keys() & others.keys())
    found = {number: abs(losses[number] - others[number]) / abs(others[number]) for number in both if others[number]}
    return LossDrift(found) if found else None


def own_drift(runs: Iterable[Mapping[int, float]]) -> LossDrift | None:
    """The most that runs of one setting differ among themselves at each iteration; None of fewer than two."""
    found: dict[int, float] = {}
    for one, other in combinations(list(runs), 2):
        pair = loss_drift(one, other)
        for number, apart in (pair.by_iteration if pair is not None else {}).items():
            found[number] = max(apart, found.get(number, 0.0))
    return LossDrift(found) if found else None
