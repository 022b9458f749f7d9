"""From the evidence of one attempt to its outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.outcome.ended import STALLED, finding_of_rank
from orchestrator.outcome.evidence import (
    OTHER_HOST_SKEW,
    SAME_HOST_SKEW,
    Evidence,
    Outcome,
    SchedulerRow,
)
from orchestrator.outcome.finding import Finding
from orchestrator.outcome.hang import culprit_of, halts_of, is_alone
from orchestrator.outcome.passing import last_completed, shortfalls
from orchestrator.outcome.raised import judge_text
from orchestrator.outcome.rule import Weight
from orchestrator.vocabulary import PASS, Cause, Stage, label_of

JOB_TIME_LIMIT = "job_time_limit"
DRIVER_SIGNAL = "driver_signal"

_SCHEDULER_CAUSES = {
    "NODE_FAIL": Cause.NODE_FAILURE,
    "BOOT_FAIL": Cause.NODE_FAILURE,
    "PREEMPTED": Cause.PREEMPTED,
    "OUT_OF_MEMORY": Cause.HOST_OOM,
    "CANCELLED": Cause.CANCELLED,
    "REVOKED": Cause.CANCELLED,
}
_JOB_LIMITS = frozenset({"TIMEOUT", "DEADLINE"})
_SUDDEN = frozenset({Cause.NODE_FAILURE, Cause.PREEMPTED, Cause.HOST_OOM})
"""What a scheduler knows better than a process that was ended without a word."""


def decide(evidence: Evidence) -> Outcome:
    """The outcome of an attempt.

    Weighed in this order: what a seam saw, the exception and its frames, the beacon, the text of the log, the
    scheduler's word. A failure after every rank was measured is a note.
    """
    findings = [finding for record in evidence.ranks.values() if (finding := finding_of_rank(record)) is not None]
    findings += _unrecorded(evidence)
    missing = list(shortfalls(evidence))
    if not missing:
        return _passed(evidence, findings)
    answer = _from_launch(evidence) or _from_ranks(evidence, findings) or _from_scheduler(evidence, findings)
    if answer is not None:
        return _with_notes(answer, [item.line for item in missing if item.cause is not Cause.UNKNOWN])
    unfinished = _unfinished(evidence)
    if unfinished is not None:
        return unfinished
    first = missing[0]
    return Outcome(
        label=label_of(first.stage, first.cause),
        cause=first.cause,
        stage=first.stage,
        rank=first.rank,
        iteration=first.iteration,
        rules=(first.rule,),
        lines=(first.line,),
        notes=tuple(item.line for item in missing[1:6]),
    )


def _passed(evidence: Evidence, findings: list[Finding]) -> Outcome:
    done = min(last_completed(record) for record in evidence.ranks.values())
    return Outcome(
        label=PASS,
        cause=Cause.NONE,
        stage=Stage.TEARDOWN,
        iteration=done,
        rules=("pass.measured",),
        lines=(
            f"{evidence.world_size} of {evidence.world_size} ranks completed iterations 1 to "
            f"{evidence.steady_window[1]} with finite losses, none skipped, and optimizer state",
        ),
        notes=tuple(f"after the measurement: {finding.line}" for finding in findings),
    )


def _from_launch(evidence: Evidence) -> Outcome | None:
    """No rank could be started."""
    attempt = evidence.attempt
    if attempt is None or not attempt.launch_error:
        return None
    found = judge_text(attempt.launch_error.splitlines(), Stage.LAUNCH)
    cause = Cause.LAUNCH if found is None or found.weight is not Weight.ROOT else found.cause
    rules = ("attempt.launch-error",) if found is None else ("attempt.launch-error", *found.rules)
    line = found.line if found is not None else attempt.launch_error.splitlines()[0]
    return Outcome(label_of(Stage.LAUNCH, cause), cause, Stage.LAUNCH, rules=rules, lines=(line,))


def _from_ranks(evidence: Evidence, findings: list[Finding]) -> Outcome | None:
    """The first rank to fail: the earliest cause that is no consequence of another's."""
    findings = [_explained(finding, evidence) for finding in findings]
    if evidence.attempt is not None and (evidence.attempt.cancelled or evidence.attempt.cut_short):
        # Being ended from outside makes ranks die of signals, lose peers and raise what no rule knows.
        findings = [finding for finding in findings if finding.weight is Weight.ROOT or finding.cause is Cause.HANG]
    causes = [finding for finding in findings if finding.weight <= Weight.VAGUE]
    waits = [finding for finding in findings if finding.weight is Weight.WAITED]
    for group in (causes, waits):
        if group:
            earliest = min(group, key=lambda finding: (finding.at, finding.weight, finding.rank))
            if STALLED in earliest.rules:
                return _outcome_of_hang(evidence)
            return _outcome_of_first(earliest, group, findings)
    return None


def _outcome_of_hang(evidence: Evidence) -> Outcome:
    """Ranks that stand still: one of them hangs, and the others wait for it."""
    halts = halts_of(evidence.ranks)
    culprit = culprit_of(halts, is_alone(evidence.ranks, evidence.world_size))
    named = [halt for halt in halts if halt.rank in culprit.ranks[:1]] or halts
    stages = {halt.stage for halt in named}
    stage = stages.pop() if len(stages) == 1 else Stage.UNKNOWN
    return Outcome(
        label=label_of(stage, Cause.HANG),
        cause=Cause.HANG,
        stage=stage,
        rank=culprit.ranks[0] if culprit.ranks else None,
        also_ranks=tuple(sorted(culprit.ranks[1:])),
        iteration=min(halt.completed for halt in named),
        rules=(STALLED, culprit.rule),
        lines=culprit.lines,
    )


def _outcome_of_first(earliest: Finding, group: list[Finding], findings: list[Finding]) -> Outcome:
    tied = [finding for finding in group if _simultaneous(earliest, finding)]
    first = min(tied, key=lambda finding: (finding.weight, finding.at, finding.rank))
    others = [finding for finding in findings if finding not in tied and finding.weight <= Weight.WAITED]
    return Outcome(
        label=label_of(first.stage, first.cause),
        cause=first.cause,
        stage=first.stage,
        rank=first.rank,
        also_ranks=tuple(sorted(finding.rank for finding in tied if finding is not first)),
        iteration=first.iteration,
        rules=first.rules,
        lines=(first.line,),
        notes=tuple(f"followed by rank {finding.rank}: {finding.line}" for finding in others[:8]),
        memory=first.memory,
    )


def _simultaneous(one: Finding, other: Finding) -> bool:
    skew = SAME_HOST_SKEW if one.host == other.host else OTHER_HOST_SKEW
    return abs(one.at - other.at) <= skew


def _explained(finding: Finding, evidence: Evidence) -> Finding:
    """A death without a word, in the scheduler's words where it has better ones."""
    if finding.weight not in (Weight.SIGNAL, Weight.VAGUE) or finding.exception:
        return finding
    for row in _rows(evidence):
        cause = _SCHEDULER_CAUSES.get(row.word)
        if cause in _SUDDEN and cause is not None:
            rules = (f"slurm.{row.word.lower()}", *finding.rules)
            line = f"Slurm says {row.id} ended {row.state}; {finding.line}"
            return replace(finding, cause=cause, weight=Weight.ROOT, rules=rules, line=line)
        told = judge_text([row.reason], finding.stage) if row.reason else None
        if told is not None and told.cause is Cause.HOST_OOM:
            # Where Slurm itself watches memory (OverMemoryKill), its row says CANCELLED and only slurmstepd says why.
            line = f"Slurm says of {row.id}: {told.line}; {finding.line}"
            return replace(
                finding, cause=told.cause, weight=Weight.ROOT, rules=(*told.rules, *finding.rules), line=line
            )
    return finding


def _from_scheduler(evidence: Evidence, findings: list[Finding]) -> Outcome | None:
    """Nothing on the ranks explains itself: what ended them."""
    attempt = evidence.attempt
    where = _where_ranks_were(evidence)
    if attempt is not None and attempt.cancelled:
        return replace(
            where, label=label_of(where.stage, Cause.CANCELLED), cause=Cause.CANCELLED, rules=("attempt.cancelled",)
        )
    for row in _rows(evidence):
        cause = _SCHEDULER_CAUSES.get(row.word)
        if cause is not None and not (attempt is not None and attempt.cut_short and cause is Cause.CANCELLED):
            return replace(
                where,
                label=label_of(where.stage, cause),
                cause=cause,
                rules=(f"slurm.{row.word.lower()}",),
                lines=(f"Slurm says {row.id} ended {row.state}",),
            )
    if attempt is not None and attempt.cut_short:
        return None
    ended = [finding for finding in findings if finding.weight is Weight.ECHO]
    if ended and not any(row.word in _JOB_LIMITS for row in _rows(evidence)):
        return replace(
            where,
            label=label_of(where.stage, Cause.CASCADE),
            cause=Cause.CASCADE,
            rules=("ranks.ended-by-others",),
            lines=tuple(finding.line for finding in ended[:4]),
        )
    return None


def _unfinished(evidence: Evidence) -> Outcome | None:
    """The attempt still runs, or was ended before its own end by its job: there is no answer yet."""
    attempt = evidence.attempt
    where = _where_ranks_were(evidence)
    cut = attempt.cut_short if attempt is not None else None
    if cut is None and any(row.word in _JOB_LIMITS for row in _rows(evidence)):
        cut = JOB_TIME_LIMIT
    if cut is not None:
        why = "its job reached its time limit" if cut == JOB_TIME_LIMIT else "its driver was told to end"
        return replace(where, label=None, cause=Cause.NONE, rules=(f"attempt.{cut.replace('_', '-')}",), lines=(why,))
    over = evidence.over if evidence.over is not None else attempt is None or attempt.ended_at is not None
    if not over:
        return replace(where, label=None, cause=Cause.NONE, rules=("attempt.running",), lines=("it has not ended",))
    return None


def _where_ranks_were(evidence: Evidence) -> Outcome:
    """Where the rank was that had got least far: a frame for the causes that no rank explains."""
    records = list(evidence.ranks.values())
    if not records:
        return Outcome(None, Cause.UNKNOWN, Stage.UNKNOWN)
    behind = min(records, key=lambda record: (record.beacon.at if record.beacon else 0.0, record.rank))
    stage = behind.beacon.stage if behind.beacon is not None else Stage.UNKNOWN
    return Outcome(None, Cause.UNKNOWN, stage, iteration=last_completed(behind))


def _unrecorded(evidence: Evidence) -> list[Finding]:
    """Ranks of which only the launcher's exit status is left."""
    attempt = evidence.attempt
    if attempt is None:
        return []
    found = []
    for name, status in attempt.exit_codes.items():
        if not name.isdigit() or int(name) in evidence.ranks or status == 0:
            continue
        found.append(
            Finding(
                rank=int(name),
                host="",
                at=attempt.ended_at if attempt.ended_at is not None else attempt.started_at,
                cause=Cause.CRASH if status < 0 else Cause.UNKNOWN,
                weight=Weight.SIGNAL if status < 0 else Weight.VAGUE,
                stage=Stage.UNKNOWN,
                iteration=None,
                rules=("launcher.signal" if status < 0 else "launcher.exit-code",),
                line=f"rank {name} left no record and ended with {'signal' if status < 0 else 'code'} {abs(status)}",
            )
        )
    return found


def _rows(evidence: Evidence) -> Iterable[SchedulerRow]:
    own = (
        SchedulerRow.of_record(evidence.attempt.scheduler) if evidence.attempt and evidence.attempt.scheduler else None
    )
    return evidence.scheduler if own is None else (own, *evidence.scheduler)


def _with_notes(outcome: Outcome, notes: list[str]) -> Outcome:
    return outcome if not notes else replace(outcome, notes=(*outcome.notes, *notes))
