"""What a pass is: optimizer state, every iteration through the window, finite losses, nothing skipped, every record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.outcome.evidence import Evidence
from orchestrator.records.rank import RankRecord
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
    """Losses that are not finite, then iterations that were skipped; the earliest of each."""
    last = evidence.steady_window[1]
    rows = sorted(
        ((row, record) for record in evidence.ranks.values() for row in record.iterations if row.number <= last),
        key=lambda pair: (pair[0].number, pair[1].rank),
    )
    for row, record in rows:
        if row.nan or (row.loss is not None and not math.isfinite(row.loss)):
            line = f"rank {record.rank}: the loss of iteration {row.number} is {row.loss}"
            yield Shortfall(Cause.NON_FINITE, Stage.FORWARD, "pass.loss-not-finite", line, record.rank, row.number - 1)
            break
    for row, record in rows:
        if row.skipped:
            line = f"rank {record.rank}: the optimizer skipped iteration {row.number}"
            yield Shortfall(
                Cause.SKIPPED_STEPS, Stage.OPTIMIZER_STEP, "pass.iteration-skipped", line, record.rank, row.number - 1
            )
            break


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
