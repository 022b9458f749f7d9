"""What a rule of diagnosis is, and running all of them over a comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.analysis.architecture import Architecture, architecture_of
from orchestrator.analysis.command import Commands
from orchestrator.analysis.comparison import Comparison, Group, Line, OneLabel
from orchestrator.analysis.reproduce import repeat_candidates
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, Row
from orchestrator.vocabulary import PASS, REJECTED, Cause

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

    def again(self, *changes: str) -> str | None:
        """A run of this candidate, with something changed; its job adds the control. None where no settings make it."""
        return repeat_candidates([self.line.candidate], self.commands, *changes)

    def full(self, *changes: str, method: str = "uniform") -> str:
        """A run of full recompute, one layer at a time."""
        settings = ("recompute_granularity=full", "recompute_modules=null", f"recompute_method={method}")
        return self.commands.run(*changes, *settings, "recompute_num_layers=1")

    def tried(self, labels: Iterable[str]) -> Line | None:
        """The line of this match key that recomputes these labels and has an outcome; None where nobody tried it."""
        wanted = frozenset(labels)
        return next((line for line in self.group.lines if _is_selective(line) and _labels(line) == wanted), None)

    @property
    def tried_full(self) -> bool:
        """Whether full recompute has an outcome in this match key."""
        lines = (line for line in self.group.lines if _has_outcome(line))
        return any(line.candidate.recompute.granularity == "full" for line in lines)

    @property
    def passed(self) -> str:
        """What of the match key passed and recomputes something, in words; empty where nothing did."""
        names = [line.text for line in self.group.lines if line.label == PASS and not line.is_control]
        return f" Of what was tried, {'; '.join(names)} passed." if names else ""

    def base(self, change: OneLabel) -> Line | None:
        """The line that one label was added to."""
        return self.group.named.get(change.base)


def _has_outcome(line: Line) -> bool:
    return line.label is not None or line.runs[0].origin == ORIGIN_PUBLISHED


def _is_selective(line: Line) -> bool:
    return _has_outcome(line) and line.candidate.recompute.granularity == "selective" and not line.candidate.offloading


def _labels(line: Line) -> frozenset[str]:
    return line.candidate.recompute.labels


def outcome(line: Line) -> str:
    """A line's label, or its source's words, with where and when: `OOM-bwd on rank 3 after iteration 1`."""
    row = line.decided
    if row.outcome_text and row.stage is None:
        return row.outcome_text if line.label is None else f"{line.label} ({row.outcome_text})"
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
    trials: tuple[str, ...] = ()
    """Every trial that it speaks of, where it speaks of several candidates."""


Check = Callable[[Subject], "Seen | None"]
Together = Callable[[Sequence["tuple[Subject, Seen]"]], "Seen"]


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
    together: Together | None = field(default=None, compare=False)
    """Says once what it has to say of several candidates of a match key; None says it of each."""


def diagnose(
    comparison: Comparison,
    rules: Sequence[Rule],
    commands: Commands | Mapping[str, Commands],
    only: frozenset[str] = frozenset(),
) -> list[Finding]:
    """Every finding of every rule, by line and then by rule. `only` are trials to speak of; empty speaks of all.

    `commands` are of all rows, or of each match key by its digest.
    """
    findings = []
    for group in comparison.groups:
        of_group = commands if isinstance(commands, Commands) else commands.get(group.digest, Commands(""))
        subjects = [
            Subject(line, group, architecture_of(line.decided), of_group)
            for line in group.lines
            if not only or any(row.trial in only for row in line.runs)
        ]
        seen = {
            rule.id: [(subject, found) for subject in subjects if (found := rule.check(subject)) is not None]
            for rule in rules
        }
        for subject in subjects:
            for rule in rules:
                findings += _findings(rule, subject, seen[rule.id])
    return findings


def _findings(rule: Rule, subject: Subject, seen: Sequence[tuple[Subject, Seen]]) -> list[Finding]:
    """What a rule says at a subject: of several that are said together, all at the first."""
    if rule.together is not None and len(seen) > 1:
        if subject is not seen[0][0]:
            return []
        names = "; ".join(one.line.text for one, _ in seen)
        trials = tuple(one.row.trial for one, _ in seen)
        return [_finding(rule, subject, rule.together(seen), f"{len(seen)} candidates ({names})", trials)]
    return [_finding(rule, subject, found, subject.line.text) for one, found in seen if one is subject]


def _finding(rule: Rule, subject: Subject, seen: Seen, name: str, trials: tuple[str, ...] = ()) -> Finding:
    return Finding(
        rule=rule.id,
        source=rule.source,
        subject=name,
        trial=subject.row.trial,
        symptom=seen.symptom,
        cause=seen.cause,
        steps=seen.steps,
        trials=trials,
    )
