"""What a study tries beside a plain grid: one label at a time, or all small sets of labels. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

GRID, ONE_AT_A_TIME, LATTICE, ESCALATE = "grid", "one_at_a_time", "lattice", "escalate"
MODES = (GRID, ONE_AT_A_TIME, LATTICE, ESCALATE)
"""Values of `study.mode`."""

INSIDE: Mapping[str, str] = {"moe_act": "moe", "shared_experts": "moe"}
"""Labels whose tensors a broader label drops already: beside it, only the moment of a replay changes."""


def one_at_a_time(
    base: Sequence[str], labels: Iterable[str], *, without_effect: Iterable[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """The control, the base list, and the base with one label more or one less: one change each, in the labels' order.

    Labels that the rules say do nothing for this model are left out.
    """
    inert = frozenset(without_effect)
    start = tuple(label for label in base if label not in inert)
    found: list[tuple[str, ...]] = [(), start]
    for label in labels:
        if label in inert:
            continue
        changed = tuple(one for one in start if one != label) if label in start else (*start, label)
        found.append(changed)
    return tuple(dict.fromkeys(found))


def lattice(
    labels: Iterable[str],
    largest: int,
    *,
    without_effect: Iterable[str] = (),
    inside: Mapping[str, str] = INSIDE,
) -> tuple[tuple[str, ...], ...]:
    """All sets of at most `largest` labels, small ones first, minus those that could only repeat another set.

    Left out are labels without effect on this model, and a label beside the one that already drops its tensors.
    """
    inert = frozenset(without_effect)
    known = [label for label in dict.fromkeys(labels) if label not in inert]
    found = []
    for size in range(max(0, largest) + 1):
        for chosen in combinations(known, size):
            if not any(inside.get(label) in chosen for label in chosen):
                found.append(chosen)
    return tuple(found)
