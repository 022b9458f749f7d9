"""What will run, what need not, and why: a pure decision over candidates, rules, verdicts and known trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from orchestrator.config.schema import RECIPE
from orchestrator.plan.candidate import REQUEST_DIGITS, Candidate, other_fingerprints, request_digest, trial_id
from orchestrator.plan.control import refused_controls
from orchestrator.plan.finding import Finding, Kind
from orchestrator.plan.rules import Judge, check
from orchestrator.plan.subject import Subject, world_size_of
from orchestrator.plan.verdict import Revision, Verdict, revision_of
from orchestrator.records.spec import ROLE_TRIAL
from orchestrator.vocabulary import REJECTED, is_result

VALIDATOR_RULE = "validator"
DUPLICATE_RULE = "duplicate"
OTHER_SOFTWARE_RULE = "other-software"
ACTIVE_RULE = "already-running"
SEARCH_RULE = "waits-for-a-search"


class Status(str, Enum):
    """What is done about a planned trial."""

    NEW = "new"
    KNOWN = "known"
    """It has a result, is running, or waits for a search that may leave it out: asking shows it."""
    REJECTED = "rejected"
    DUPLICATE = "duplicate"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class PlannedTrial:
    """A candidate's trial with what was decided about it."""

    trial: str
    name: str
    request: Mapping[str, Any]
    repeat: int
    status: Status
    findings: tuple[Finding, ...] = ()
    label: str | None = None
    """The known label, `rejected`, or None for a trial that has none yet."""
    role: str = ROLE_TRIAL
    world_size: int | None = None
    is_control: bool = False
    effective: Mapping[str, Any] | None = None
    """What predictions read of the configuration that the framework finished; None where no recipe was asked."""

    @cached_property
    def candidate(self) -> Candidate:
        return Candidate(self.name, self.request)

    @property
    def waits(self) -> bool:
        """Whether a running search has it as a candidate, and has not decided on it."""
        return any(finding.rule == SEARCH_RULE for finding in self.findings)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The findings as sentences, what decided first."""
        return tuple(finding.message for finding in sorted(self.findings, key=lambda item: _ORDER[item.kind]))


@dataclass(frozen=True)
class Plan:
    """A study's trials in the order in which they would run."""

    study: str
    entries: tuple[PlannedTrial, ...]
    strict: bool = False
    notes: tuple[str, ...] = ()
    """What holds for the whole plan: which revision judged it, or why none could."""
    software: Mapping[str, Any] = field(default_factory=dict)
    searched: bool = False
    """Whether the driver decides, trial by trial, which of the new ones run."""
    refused_controls: Mapping[str, Finding] = field(default_factory=dict)
    """What refuses the control of new trials, by `Candidate.match_key`: they run without one."""

    def of(self, *statuses: Status) -> tuple[PlannedTrial, ...]:
        """The entries with one of these statuses, in order."""
        return tuple(entry for entry in self.entries if entry.status in statuses)

    @property
    def new(self) -> tuple[PlannedTrial, ...]:
        return self.of(Status.NEW)

    @property
    def known(self) -> tuple[PlannedTrial, ...]:
        return self.of(Status.KNOWN)

    @property
    def rejected(self) -> tuple[PlannedTrial, ...]:
        return self.of(Status.REJECTED)

    @property
    def duplicates(self) -> tuple[PlannedTrial, ...]:
        return self.of(Status.DUPLICATE)

    def count(self, status: Status) -> int:
        return sum(entry.status is status for entry in self.entries)

    def rejections_by_rule(self) -> dict[str, list[PlannedTrial]]:
        """Rejected entries under the first rule that rejects each, most frequent rule first."""
        groups: dict[str, list[PlannedTrial]] = {}
        for entry in self.rejected:
            groups.setdefault(self.deciding(entry).rule, []).append(entry)
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))

    def deciding(self, entry: PlannedTrial) -> Finding:
        """The finding that rejected an entry: a rule's before the framework's own, since it carries the fix."""
        return next(finding for finding in entry.findings if finding.rejects(strict=self.strict))

    def findings(self, kind: Kind) -> Counter[Finding]:
        """The findings of a kind and in how many entries each stands."""
        return Counter(finding for entry in self.entries for finding in entry.findings if finding.kind is kind)


def make_plan(
    study: str,
    candidates: Sequence[Candidate],
    *,
    known: Mapping[str, str | None],
    verdicts: Sequence[Verdict | None] | None = None,
    active: Mapping[str, str] | None = None,
    undecided: Collection[str] = (),
    repeats: int = 1,
    strict: bool = False,
    fingerprint: Mapping[str, Any] | None = None,
    revision: Revision | None = None,
    notes: Sequence[str] = (),
    searched: bool = False,
) -> Plan:
    """Decide about every candidate.

    Args:
        known: label by trial id; None for a trial that has been asked for and has no label.
        verdicts: the exact revision's answer for each candidate, None where it could not judge.
        active: the batch that is running a trial now, by trial id.
        undecided: those of the active ones that a search may yet leave out.
        fingerprint: the software found, for what no revision pins.
        revision: what the rules are to restate where no verdict says which; by default the newest that they know.

    Entries run repeat by repeat, so a study that is cut short has measured every candidate as often as every other.
    """
    judged = list(_judge(candidates, verdicts, revision or Revision(), strict=strict))
    before = _by_request(known)
    entries = []
    for repeat in range(max(1, repeats)):
        for index, (candidate, findings, twin) in enumerate(judged):
            verdict = verdicts[index] if verdicts is not None else None
            trial = trial_id(candidate, repeat, fingerprint)
            entry = PlannedTrial(
                trial=trial,
                name=f"{candidate.name} (repeat {repeat})" if repeat else candidate.name,
                request=candidate.request,
                repeat=repeat,
                status=Status.NEW,
                findings=findings,
                world_size=world_size_of(candidate.request),
                is_control=candidate.is_control,
                effective=None if verdict is None else verdict.effective,
            )
            if any(finding.rejects(strict=strict) for finding in findings):
                settled = _with(entry, Status.REJECTED, label=REJECTED)
            elif twin is not None:
                settled = _with(entry, Status.DUPLICATE, _duplicate_of(twin))
            else:
                settled = _look_up(entry, known, before, active or {}, undecided)
            if repeat == 0 or settled.status in (Status.NEW, Status.KNOWN):
                entries.append(settled)
    plan = Plan(
        study, tuple(entries), strict=strict, notes=tuple(notes), software=dict(fingerprint or {}), searched=searched
    )
    return replace(plan, refused_controls=_without_control(plan, revision or Revision()))


def _without_control(plan: Plan, revision: Revision) -> dict[str, Finding]:
    def candidates(*statuses: Status) -> list[Candidate]:
        return [one.candidate for one in plan.of(*statuses) if one.repeat == 0]

    controls = [one for one in plan.rejected if one.is_control and _says_no_more(one.request)]
    return refused_controls(
        [one.candidate for one in plan.new],
        candidates(Status.NEW, Status.KNOWN),
        {one.candidate.match_key: plan.deciding(one) for one in controls},
        revision,
        strict=plan.strict,
    )


def _says_no_more(request: Mapping[str, Any]) -> bool:
    """Whether an asked-for control says nothing that an added one would not."""
    return all(request.get(key) in (None, RECIPE) for key in ("recompute_method", "recompute_num_layers"))


def _judge(
    candidates: Sequence[Candidate],
    verdicts: Sequence[Verdict | None] | None,
    revision: Revision,
    *,
    strict: bool,
) -> Iterator[tuple[Candidate, tuple[Finding, ...], str | None]]:
    """Each candidate with its findings and the name of an earlier one that asks for the same."""
    seen: dict[str, str] = {}
    for index, candidate in enumerate(candidates):
        verdict = verdicts[index] if verdicts is not None else None
        answered = revision_of(verdict.software) if verdict is not None else None
        findings = _findings(candidate, verdict, answered or revision)
        digest = request_digest(candidate)
        twin = seen.get(digest)
        if not any(finding.rejects(strict=strict) for finding in findings):
            seen.setdefault(digest, candidate.name)
        yield candidate, findings, twin


def _findings(candidate: Candidate, verdict: Verdict | None, revision: Revision) -> tuple[Finding, ...]:
    found = check(Subject.of(candidate.request, revision))
    if verdict is None:
        return tuple(finding for finding, _ in found)
    name = revision.title
    findings = []
    judged = (Judge.RECOMPUTE,) if candidate.trainer == "bridge" else (Judge.RECOMPUTE, Judge.CONFIG)
    for finding, judge in found:
        if finding.kind is Kind.INVALID and judge in judged and verdict.ok:
            text = f"{name} accepts this, so it runs, although our rule says: {finding.message}"
            finding = Finding(finding.rule, Kind.DIFFERS, text, finding.source)
        findings.append(finding)
    if not verdict.ok:
        said = verdict.message or f"{name} refuses it and gives no reason"
        findings.append(Finding(VALIDATOR_RULE, Kind.INVALID, said, f"the trainer's own validation, {name}"))
        if not any(finding.kind is Kind.INVALID for finding in findings[:-1]):
            text = f"the trainer's own validation refuses this, and no rule foresaw it: {said}"
            findings.append(Finding(VALIDATOR_RULE, Kind.DIFFERS, text))
    findings += [Finding(VALIDATOR_RULE, Kind.OPEN, item) for item in _opened(verdict)]
    return tuple(findings)


def _opened(verdict: Verdict) -> list[str]:
    """What stayed open, as sentences; a bare name is a setting that only the recipe knows."""
    names = [item for item in verdict.open if item.isidentifier()]
    sentences = [item for item in verdict.open if not item.isidentifier()]
    if names:
        said = f"only the recipe knows {', '.join(names)}: what depends on it is judged where the trial runs"
        sentences.append(said)
    return sentences


def _by_request(known: Mapping[str, str | None]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for trial in known:
        groups.setdefault(trial[:REQUEST_DIGITS], []).append(trial)
    return groups


def _look_up(
    entry: PlannedTrial,
    known: Mapping[str, str | None],
    before: Mapping[str, list[str]],
    active: Mapping[str, str],
    undecided: Collection[str],
) -> PlannedTrial:
    label = known.get(entry.trial)
    if label is not None and is_result(label):
        return _with(entry, Status.KNOWN, label=label)
    if entry.trial in active and entry.trial in undecided:
        text = (
            f"it waits for the search in batch {active[entry.trial]}, which may leave it out: once that is over, the "
            "same command runs it where it has no result"
        )
        return _with(entry, Status.KNOWN, Finding(SEARCH_RULE, Kind.NOTE, text), label=None)
    if entry.trial in active:
        text = f"it is already running, or waiting, in batch {active[entry.trial]}"
        return _with(entry, Status.KNOWN, Finding(ACTIVE_RULE, Kind.NOTE, text), label=label)
    if label is not None:
        text = f"it ended with {label} before, which is no result, so it runs again"
        return _with(entry, Status.NEW, Finding("no-result", Kind.NOTE, text), label=None)
    others = other_fingerprints(entry.trial, before.get(entry.trial[:REQUEST_DIGITS], ()))
    others = [other for other in others if is_result(known[other] or "")]
    if others:
        text = (
            f"trial {others[-1]} asked for the same and has the result {known[others[-1]]}, with other software than "
            "is found now, so it runs again; pin `revisions` to say that the software is the same"
        )
        return _with(entry, Status.NEW, Finding(OTHER_SOFTWARE_RULE, Kind.NOTE, text))
    return entry


def _duplicate_of(name: str) -> Finding:
    text = f"it asks for the same as {name}, so it runs once"
    return Finding(DUPLICATE_RULE, Kind.NOTE, text, "normalisation of the request")


def _with(entry: PlannedTrial, status: Status, *findings: Finding, label: str | None = None) -> PlannedTrial:
    return replace(entry, status=status, findings=entry.findings + findings, label=label)


_ORDER = {kind: order for order, kind in enumerate(Kind)}
