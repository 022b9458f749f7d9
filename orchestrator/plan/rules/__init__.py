"""Every rule, in the order in which a reader wants to hear of it: types, recompute, layout, batch, the rest."""

from __future__ import annotations

from functools import lru_cache

from orchestrator.plan.finding import Finding
from orchestrator.plan.rules import (
    attention,
    batch,
    graphs,
    modules,
    moe,
    offload,
    overlap,
    precision,
    ranks,
    recompute,
    settings,
    stages,
)
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject
from orchestrator.plan.verdict import Revision

RULES: tuple[Rule, ...] = (
    *settings.RULES,
    *recompute.RULES,
    *modules.RULES,
    *offload.RULES,
    *ranks.RULES,
    *stages.RULES,
    *batch.RULES,
    *attention.RULES,
    *moe.RULES,
    *overlap.RULES,
    *precision.RULES,
    *graphs.RULES,
)

__all__ = ["RULES", "Judge", "Rule", "check"]


@lru_cache(maxsize=16)
def _rules_of(core: str) -> tuple[Rule, ...]:
    revision = Revision(core)
    return tuple(rule for rule in RULES if rule.restates(revision))


def check(subject: Subject) -> list[tuple[Finding, Judge]]:
    """What every rule says about a candidate, with where the framework itself would notice."""
    found = []
    for rule in _rules_of(subject.revision.core):
        finding = rule.find(subject)
        if finding is not None:
            found.append((finding, rule.judge))
    return found
