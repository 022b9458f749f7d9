"""From what logs say to what happened: causes before consequences, by time where there are times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.outcome.evidence import Outcome
from orchestrator.outcome.log.account import Account, LogFinding
from orchestrator.outcome.raised import Verdict
from orchestrator.outcome.rule import Weight
from orchestrator.vocabulary import SETUP_STAGES, Cause, Stage, label_of
from orchestrator.vocabulary.causes import OOM_CAUSES

SKEW = 1.0
"""Seconds within which failures on several ranks count as simultaneous."""
BUFFERED = 10
"""Iterations that a log may still speak of after a fatal line, because output was held back in a buffer."""

_FULL_DEVICE = OOM_CAUSES | {Cause.SHARED_GPU}
_FROM_OUTSIDE = frozenset({Cause.NODE_FAILURE, Cause.PREEMPTED, Cause.CANCELLED, Cause.TIME_LIMIT, Cause.HARDWARE})
"""What no line of the program brings about, so that where it raised something else says nothing."""
_ORDER: dict[Weight, tuple[frozenset[Cause], ...]] = {
    Weight.ROOT: (
        frozenset({Cause.HARDWARE}),
        frozenset({Cause.NODE_FAILURE}),
        _FULL_DEVICE,
        frozenset({Cause.ILLEGAL_ACCESS}),
        frozenset({Cause.KERNEL_RESOURCES}),
        frozenset({Cause.HOST_OOM}),
        frozenset({Cause.PREEMPTED}),
        frozenset({Cause.STORAGE}),
        frozenset({Cause.NON_FINITE}),
        frozenset({Cause.GPU_LIBRARY}),
        frozenset({Cause.INVALID_CONFIG}),
        frozenset({Cause.SUBMISSION}),
        frozenset({Cause.LAUNCH}),
        frozenset({Cause.IMPORT_ERROR}),
    ),
    Weight.NUMBERS: (frozenset({Cause.NON_FINITE}),),
    Weight.WAITED: (frozenset({Cause.HANG}), frozenset({Cause.TIME_LIMIT}), frozenset({Cause.CRASH})),
    Weight.ECHO: (frozenset({Cause.CRASH}), frozenset({Cause.CANCELLED})),
}
"""Which of several causes, without times to order them, explains the others: a broken GPU makes programs read wrong
addresses, a full device makes cuBLAS fail, a hang ends in lost connections."""


@dataclass(frozen=True)
class Place:
    """A line that decided."""

    file: str
    line: int
    text: str
    rule: str


@dataclass(frozen=True)
class LogOutcome:
    """What logs say happened. The outcome's label is None where they show no failure."""

    outcome: Outcome
    evidence: tuple[Place, ...]


def judge(accounts: Sequence[Account]) -> LogOutcome:
    """What happened, by the logs of one job. A log alone never shows a pass."""
    given = accounts
    accounts = [account for account in accounts if not account.binary and not _only_words(account)]
    alive = [finding for account in accounts for finding in account.findings if not _survived(finding, account)]
    if not alive:
        return _nothing_wrong(accounts, given)
    first, tied = _first(alive, _first_failure(accounts))
    stage, extra = _stage(first, alive)
    cause = first.verdict.cause
    iteration = first.before if first.before is not None else _before_the_named(first.text)
    if iteration is None and stage in SETUP_STAGES:
        iteration = 0
    one_host = len(set().union(*(account.hosts for account in accounts))) <= 1
    outcome = Outcome(
        label=label_of(stage, cause),
        cause=cause,
        stage=stage,
        rank=_rank(first, one_host),
        also_ranks=_other_ranks(first, tied, one_host),
        iteration=iteration,
        rules=(*first.verdict.rules, *extra),
        lines=(first.text,),
        notes=tuple(_notes(first, alive, accounts)),
        memory=first.verdict.memory,
    )
    return LogOutcome(outcome, tuple(_places(first, tied)))


def _only_words(account: Account) -> bool:
    """Whether it is a document without a traceback: nothing ran there."""
    return account.document and not any(finding.verdict.frame is not None for finding in account.findings)


def _before_the_named(text: str) -> int | None:
    """The last completed iteration by a line that names the one that it speaks of."""
    named = re.search(r"\b(?:iteration|step) #?(\d+)\b", text)
    return None if named is None else max(0, int(named.group(1)) - 1)


def _survived(finding: LogFinding, account: Account) -> bool:
    """Whether training went on after it: then it was caught, retried, or somebody else's.

    A few iterations may be printed late. They count only where nothing says afterwards that a process ended.
    """
    if finding.verdict.weight is Weight.NUMBERS:
        return _may_recover(finding.verdict) and _stopped(finding, account)
    later = [(offset, iteration) for offset, iteration in account.progress if offset > finding.offset]
    before = finding.before
    if before is None:  # the log may begin anywhere
        before = min((iteration for _, iteration in later), default=1) - 1
    reached = max((iteration for _, iteration in later), default=before)
    ended = any(
        other.offset > finding.offset and other.verdict.weight is not Weight.NUMBERS for other in account.findings
    )
    if account.over is not None and account.over > finding.offset and not ended:
        return True
    if reached - before >= BUFFERED:
        return True
    if reached - before < 2:
        return False
    last = max(offset for offset, _ in later)
    return not ended or any(
        other.offset > last and other.verdict.weight <= Weight.VAGUE and other.stream == finding.stream
        for other in account.findings
    )


def _may_recover(verdict: Verdict) -> bool:
    """Loss scaling skips a few iterations when it starts, for what their gradients were; a run that goes on so is
    another matter."""
    return verdict.cause is Cause.SKIPPED_STEPS or verdict.rules[:1] == ("numbers.gradient-in-progress",)


def _stopped(finding: LogFinding, account: Account) -> bool:
    """Whether training went on without it."""
    last, iteration = account.last.get(finding.verdict.cause, (finding.offset, 0))
    return any(offset > last and reached > iteration for offset, reached in account.progress)


def _nothing_wrong(accounts: Sequence[Account], given: Sequence[Account]) -> LogOutcome:
    """No failure is shown by those of the given files that are logs."""
    iteration = max((iteration for account in accounts for _, iteration in account.progress), default=None)
    over = any(account.over is not None for account in accounts)
    survived = [finding for account in accounts for finding in account.findings]
    notes = [f"training went on after: {finding.text[:200]}" for finding in survived[:4]]
    trained = over or iteration is not None or any(account.remarks for account in accounts)
    outcome = Outcome(
        label=None,
        cause=Cause.NONE if trained else Cause.UNKNOWN,
        stage=Stage.TEARDOWN if over else Stage.UNKNOWN,
        iteration=iteration,
        rules=("log.no-failure",) if trained else (_why_nothing(given),),
        notes=(*notes, *_cut_notes(given)),
    )
    return LogOutcome(outcome, ())


def _why_nothing(given: Sequence[Account]) -> str:
    """The rule that says why nothing can be said."""
    if not any(account.bytes for account in given):
        return "log.empty"
    if all(account.binary or not account.bytes for account in given):
        return "log.not-text"
    if all(account.document or account.binary or not account.bytes for account in given):
        return "log.document"
    return "log.says-nothing"


def _cut_notes(given: Sequence[Account]) -> list[str]:
    return [f"{account.file} ends in the middle of its compressed data" for account in given if account.cut]


def _first(alive: list[LogFinding], first_failure: int | None) -> tuple[LogFinding, list[LogFinding]]:
    """The first cause that is no consequence, and those that tie with it."""
    weight = min(finding.verdict.weight for finding in alive)
    group = [finding for finding in alive if finding.verdict.weight is weight]
    group = _first_of_each_process(group)
    if (
        len({finding.moment.dated if finding.moment else None for finding in group}) == 1
        and group[0].moment is not None
    ):
        earliest = min(_seconds(finding) for finding in group)
        group = [finding for finding in group if _seconds(finding) - earliest <= SKEW]
        group.sort(key=_seconds)
    place = min(_place_in_order(finding) for finding in group)
    tied = [finding for finding in group if _place_in_order(finding) == place]
    named = [finding for finding in tied if first_failure is not None and finding.rank == first_failure]
    framed = [finding for finding in tied if finding.framed and _same_process(finding, tied[0])]
    first = (named or framed or tied)[0]
    return first, [finding for finding in tied if finding.verdict.cause is first.verdict.cause]


def _first_of_each_process(group: list[LogFinding]) -> list[LogFinding]:
    """Of each process, its first finding of each place in the order."""
    seen = set()
    kept = []
    for finding in group:
        key = (finding.file, finding.stream, finding.rank, _place_in_order(finding), finding.framed)
        if key not in seen:
            seen.add(key)
            kept.append(finding)
    return kept


def _place_in_order(finding: LogFinding) -> int:
    order = _ORDER.get(finding.verdict.weight, ())
    for index, causes in enumerate(order):
        if finding.verdict.cause in causes:
            return index
    return len(order)


def _seconds(finding: LogFinding) -> float:
    return finding.moment.seconds if finding.moment is not None else 0.0


def _same_process(one: LogFinding, other: LogFinding) -> bool:
    return (one.file, one.stream, one.rank) == (other.file, other.stream, other.rank)


def _first_failure(accounts: Sequence[Account]) -> int | None:
    return next((account.first_failure for account in accounts if account.first_failure is not None), None)


def _stage(first: LogFinding, alive: list[LogFinding]) -> tuple[Stage, tuple[str, ...]]:
    """Where it was: its own frames or words, else those of its process around it, else what it last said it did."""
    if first.verdict.stage is not Stage.UNKNOWN:
        return first.verdict.stage, ()
    near = [
        finding
        for finding in alive
        if finding.file == first.file and finding.verdict.frame is not None
        if finding.verdict.stage is not Stage.UNKNOWN
    ]
    same = [finding for finding in near if finding.stream == first.stream]
    if not same and first.verdict.cause is Cause.NCCL_OOM:
        same = [finding for finding in near if finding.verdict.weight is Weight.WAITED]
    if not same and first.verdict.cause not in _FROM_OUTSIDE:
        # Kernels and drivers print without a rank, and all ranks run the same program.
        raised = [finding for finding in near if finding.verdict.weight <= Weight.VAGUE]
        same = raised if len({finding.verdict.stage for finding in raised}) == 1 else []
    if same:
        nearest = min(same, key=lambda finding: abs(finding.offset - first.offset))
        return nearest.verdict.stage, nearest.verdict.rules[-1:]
    if first.mark is not None:
        return first.mark[1], (first.mark[0],)
    return Stage.UNKNOWN, ()


def _rank(finding: LogFinding, one_host: bool) -> int | None:
    if finding.rank is not None:
        return finding.rank
    return finding.local if one_host else None


def _other_ranks(first: LogFinding, tied: list[LogFinding], one_host: bool) -> tuple[int, ...]:
    ranks = {_rank(finding, one_host) for finding in tied} - {_rank(first, one_host)}
    return tuple(sorted(rank for rank in ranks if rank is not None))


def _notes(first: LogFinding, alive: list[LogFinding], accounts: Sequence[Account]) -> list[str]:
    notes = []
    over = [account for account in accounts if account.file == first.file and account.over is not None]
    if over and over[0].over is not None and over[0].over < first.offset:
        notes.append("training had ended before this: what it measured is valid")
    followed: dict[Cause, LogFinding] = {}
    for finding in alive:
        if finding.verdict.cause is not first.verdict.cause:
            followed.setdefault(finding.verdict.cause, finding)
    notes += [
        f"also said, and taken for a consequence ({cause}): {finding.text[:160]}" for cause, finding in followed.items()
    ]
    notes += _cut_notes(accounts)
    left_out = sum(account.left_out for account in accounts)
    if left_out:
        notes.append(f"{left_out} further lines repeat these")
    return notes


def _places(first: LogFinding, tied: list[LogFinding]) -> list[Place]:
    places = [Place(first.file, first.line, first.text, first.verdict.rules[0])]
    seen = {(first.file, first.line)}
    frame = first.verdict.frame
    if frame is not None and frame.line is not None:
        calls = f": {frame.code}" if frame.code else ""
        places.append(
            Place(first.file, frame.line, f'File "{frame.file}", in {frame.function}{calls}', first.verdict.rules[-1])
        )
    for finding in tied:
        if (finding.file, finding.line) not in seen and len(places) < 6:
            seen.add((finding.file, finding.line))
            places.append(Place(finding.file, finding.line, finding.text, finding.verdict.rules[0]))
    return places
