"""What a rule of diagnosis is, and running all of them over a comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.analysis.architecture import Architecture, architecture_of
from orchestrator.analysis.command import Commands
from orchestrator.analysis.comparison import Comparison, Group, Line, OneLabel
from orchestrator.analysis.rows import Row
from orchestrator.vocabulary import REJECTED, Cause

GUIDE = "guide, Failure Diagnosis"


@dataclass(frozen=True)
class Subject:
    """One line of a comparison, with what a rule may want to know of it."""

    line: Line
    group: Group
    model: Architecture
    commands: Commands

    @property
    def row(self) -> Row:
        return self.line.decided

    @property
    def labels(self) -> frozenset[str]:
        return self.line.candidate.recompute.labels

    @property
    def is_oom(self) -> bool:
        return (self.line.label or "").startswith("OOM-")

    @property
    def reason(self) -> str:
        """The first deciding line."""
        return self.row.evidence[0] if self.row.evidence else "no reason on record"

    @property
    def show(self) -> str:
        """The command that shows everything of the trial."""
        return self.commands.verb("show", self.row.trial)

    def refused(self, words: re.Pattern[str] | None = None) -> bool:
        """Whether a rule or the framework refused the candidate, in such words."""
        if self.line.label not in (REJECTED, f"failed:{Cause.INVALID_CONFIG}"):
            return False
        return words is None or any(words.search(line) for line in (*self.row.evidence, *self.row.notes))

    def full(self, *changes: str, method: str = "uniform") -> str:
        """A run of full recompute, one layer at a time."""
        settings = ("recompute_granularity=full", "recompute_modules=null", f"recompute_method={method}")
        return self.commands.run(*changes, *settings, "recompute_num_layers=1")

    def base(self, change: OneLabel) -> Line | None:
        """The line that one label was added to."""
        return next((line for line in self.group.lines if line.text == change.base), None)


def outcome(line: Line) -> str:
    """A line's label, or its source's words, with where and when: `OOM-bwd on rank 3 after iteration 1`."""
    row = line.decided
    if row.outcome_text and row.stage is None:
        return row.outcome_text
    where = f" on rank {row.rank}" if row.rank is not None else ""
    after = f" after iteration {row.last_iteration}" if row.last_iteration else ""
    return f"{line.label}{where}{after}"


@dataclass(frozen=True)
class Step:
    """What to do next, and the command that does it."""

    action: str
    command: str | None = None


@dataclass(frozen=True)
class Finding:
    """One diagnosis of one candidate."""

    rule: str
    source: str
    subject: str
    trial: str
    symptom: str
    """What was seen, with its numbers."""
    cause: str
    steps: tuple[Step, ...] = ()


Check = Callable[[Subject], "Seen | None"]


@dataclass(frozen=True)
class Seen:
    """A rule's answer for one subject."""

    symptom: str
    cause: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A named check, and the document that it restates."""

    id: str
    source: str
    check: Check = field(compare=False)


def diagnose(
    comparison: Comparison, rules: Sequence[Rule], commands: Commands, only: frozenset[str] = frozenset()
) -> list[Finding]:
    """Every finding of every rule, by line and then by rule. `only` are trials to speak of; empty speaks of all."""
    findings = []
    for group in comparison.groups:
        for line in group.lines:
            if only and not any(row.trial in only for row in line.runs):
                continue
            subject = Subject(line, group, architecture_of(line.decided), commands)
            for rule in rules:
                seen = rule.check(subject)
                if seen is not None:
                    findings.append(
                        Finding(
                            rule=rule.id,
                            source=rule.source,
                            subject=line.text,
                            trial=line.decided.trial,
                            symptom=seen.symptom,
                            cause=seen.cause,
                            steps=seen.steps,
                        )
                    )
    return findings
