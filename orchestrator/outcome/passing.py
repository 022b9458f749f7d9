"""What a pass is: optimizer state, every iteration through the window, finite losses, nothing skipped, every record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.outcome.evidence import Evidence
from orchestrator.records.rank import IterationRecord, RankRecord
from orchestrator.vocabulary import Cause, Stage


@dataclass(frozen=True)
class Shortfall:
    """One thing that keeps an attempt from being a pass."""

    cause: Cause
    stage: Stage
    rule: str
    line: str
    rank: int | None = None
    iteration: int | None = None


def shortfalls(evidence: Evidence) -> Iterator[Shortfall]:
    """Everything that keeps the attempt from being a pass, the most telling first; nothing for a pass."""
    yield from _bad_numbers(evidence)
    missing = [rank for rank in range(evidence.world_size) if rank not in evidence.ranks]
    if missing:
        named = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        yield Shortfall(
            Cause.UNKNOWN,
            Stage.UNKNOWN,
            "pass.record-missing",
            f"{len(missing)} of {evidence.world_size} ranks left no record: {named}",
            missing[0],
        )
    for record in evidence.ranks.values():
        yield from _unfinished(record, evidence.steady_window[1])
    if evidence.ranks and not missing:
        yield from _losses_absent(evidence)


def last_completed(record: RankRecord) -> int:
    """The last iteration that a rank completed; 0 for none."""
    rows = max((iteration.number for iteration in record.iterations), default=0)
    begun = record.beacon.iteration if record.beacon is not None else 0
    return max(rows, begun - 1, 0)


def _bad_numbers(evidence: Evidence) -> Iterator[Shortfall]:
    """Losses or norms that are not finite, then iterations that were skipped; the earliest of each."""
    last = evidence.steady_window[1]
    rows = [(record.rank, row) for record in evidence.ranks.values() for row in record.iterations if row.number <= last]
    found = _earliest((rank, row) for rank, row in rows if row.nan or not _finite(row.loss))
    if found is not None:
        rank, row, said = found
        what, value = ("gradient norm", row.grad_norm) if _finite(row.loss) else ("loss", row.loss)
        line = f"{said}: the {what} of iteration {row.number} is {value}"
        yield Shortfall(Cause.NON_FINITE, Stage.FORWARD, "pass.loss-not-finite", line, rank, row.number - 1)
    found = _earliest((rank, row) for rank, row in rows if row.skipped)
    if found is not None:
        rank, row, said = found
        line = f"{said}: the optimizer skipped iteration {row.number}"
        yield Shortfall(Cause.SKIPPED_STEPS, Stage.OPTIMIZER_STEP, "pass.iteration-skipped", line, rank, row.number - 1)


def _earliest(rows: Iterable[tuple[int, IterationRecord]]) -> tuple[int | None, IterationRecord, str] | None:
    """The rank of the first of bad rows, the row, and its ranks in words.

    No rank where several have it: a norm is a sum over ranks, and which of them spoilt it is not to be seen.
    """
    rows = sorted(rows, key=lambda pair: (pair[1].number, pair[0]))
    if not rows:
        return None
    first = rows[0][1]
    ranks = [rank for rank, row in rows if row.number == first.number]
    if len(ranks) == 1:
        return ranks[0], first, f"rank {ranks[0]}"
    return None, first, f"{len(ranks)} ranks"


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _unfinished(record: RankRecord, last: int) -> Iterator[Shortfall]:
    seen = {row.number for row in record.iterations}
    absent = next((number for number in range(1, last + 1) if number not in seen), None)
    where = record.beacon.stage if record.beacon is not None else Stage.UNKNOWN
    done = last_completed(record)
    if absent is not None:
        line = f"rank {record.rank}: iteration {absent} of the {last} through the steady window was not recorded"
        yield Shortfall(Cause.UNKNOWN, where, "pass.iteration-missing", line, record.rank, done)
    elif not record.measured:
        line = f"rank {record.rank}: the steady window did not end"
        yield Shortfall(Cause.UNKNOWN, where, "pass.not-measured", line, record.rank, done)
    if record.optimizer_state is not True:
        said = "was not looked for" if record.optimizer_state is None else "did not exist"
        line = f"rank {record.rank}: optimizer state {said}"
        yield Shortfall(Cause.UNKNOWN, Stage.OPTIMIZER_INIT, "pass.no-optimizer-state", line, record.rank, done)


def _losses_absent(evidence: Evidence) -> Iterator[Shortfall]:
    """Only the last pipeline stage has losses; some rank must have one for every iteration."""
    last = evidence.steady_window[1]
    have = {row.number for record in evidence.ranks.values() for row in record.iterations if row.loss is not None}
    absent = next((number for number in range(1, last + 1) if number not in have), None)
    if absent is not None:
        yield Shortfall(
            Cause.UNKNOWN, Stage.FORWARD, "pass.no-loss", f"no rank recorded a loss for iteration {absent}", None, None
        )
