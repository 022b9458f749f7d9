"""A rule: one refusal or warning of the framework or of the guide, restated with its fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from orchestrator.plan.finding import Finding, Kind
from orchestrator.plan.subject import Subject, UnknownFieldError
from orchestrator.plan.verdict import Revision


class Judge(str, Enum):
    """Where the framework itself would notice."""

    RECOMPUTE = "recompute"
    """While the configuration object is made, from the four recompute settings and what a label needs of a model: the
    exact revision's validator judges it too, also where a recipe hides the rest."""
    CONFIG = "config"
    """While the configuration object is made, from any of its fields: judged too where the whole model is given."""
    RUN = "run"
    """Later: while groups, model or schedule are set up. The validator's consent says nothing about it."""
    GUIDE = "guide"
    """Never: it runs, and does not do what was meant."""


@dataclass(frozen=True)
class Rule:
    """`check` gives the message where the rule applies, else None. It may raise `UnknownFieldError`."""

    id: str
    kind: Kind
    judge: Judge
    source: str
    check: Callable[[Subject], str | None]
    since: str = "0"
    """First Megatron Core release that behaves so."""
    before: str = "999"
    """First release that no longer does."""

    def restates(self, revision: Revision) -> bool:
        """Whether that revision behaves as this rule says."""
        return revision.at_least(self.since) and not revision.at_least(self.before)

    def find(self, subject: Subject) -> Finding | None:
        """The finding about a candidate, if this rule has one. The revision must be one that it restates."""
        try:
            message = self.check(subject)
        except UnknownFieldError:
            return None
        return Finding(self.id, self.kind, message, self.source) if message else None


def near(wanted: int, allowed: list[int]) -> str:
    """Up to four allowed numbers, nearest first, as words."""
    nearest = sorted(set(allowed), key=lambda value: (abs(value - wanted), value))[:4]
    return ", ".join(map(str, nearest)) or "none"


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})
