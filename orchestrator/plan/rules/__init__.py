"""Every rule, in the order in which a reader wants to hear of it: types, recompute, layout, batch, the rest."""

from __future__ import annotations

from orchestrator.plan.finding import Finding
from orchestrator.plan.rules import batch, recompute, settings
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject

RULES: tuple[Rule, ...] = (*settings.RULES, *recompute.RULES, *batch.RULES)

__all__ = ["RULES", "Judge", "Rule", "check"]


def check(subject: Subject) -> list[tuple[Finding, Judge]]:
    """What every rule says about a candidate, with where the framework itself would notice."""
    found = []
    for rule in RULES:
        finding = rule.find(subject)
        if finding is not None:
            found.append((finding, rule.judge))
    return found
