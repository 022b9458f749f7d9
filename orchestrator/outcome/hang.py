"""Which rank hangs, of those that stand still: the one that the others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.outcome.evidence import OTHER_HOST_SKEW, SAME_HOST_SKEW
from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.outcome.passing import last_completed
from orchestrator.outcome.stacks import Doing, doing
from orchestrator.records.rank import ENDED_EXIT, ENDED_STALL, ENDED_TERMINATED, RankRecord
from orchestrator.vocabulary import Stage


@dataclass(frozen=True)
class Halt:
    """A rank that did not go on. `at` is unix seconds of its last step forward."""

    rank: int
    host: str
    stage: Stage
    at: float
    doing: Doing
    frame: SourceFrame | None = None
    """What says what it was doing."""
    completed: int = 0
    """The last completed iteration."""

    @property
    def said(self) -> str:
        """The rank in words."""
        inside = f", in {self.frame.function} of {'/'.join(self.frame.file.split('/')[-2:])}" if self.frame else ""
        return f"rank {self.rank} ({self.stage}) {self.doing.value}{inside}"


@dataclass(frozen=True)
class Culprit:
    """Who hangs, by which rule. No ranks where the evidence does not decide."""

    ranks: tuple[int, ...]
    """The first to stop, then those that stopped by themselves within the clocks' skew of it."""
    rule: str
    lines: tuple[str, ...]


_LINES = 4


def halts_of(ranks: Mapping[int, RankRecord]) -> list[Halt]:
    """The ranks that stood still until they were ended, by a supervisor that lost patience or for another's sake."""
    return [_halt(record) for record in ranks.values() if record.ended in (ENDED_STALL, ENDED_TERMINATED)]


def culprit_of(halts: Sequence[Halt], alone: bool) -> Culprit:
    """The rank that hangs.

    The age of a heartbeat does not say: a rank that waits may well have stopped first. What the ranks were doing does.
    A rank that waits for another is never the one; one that waits for a lock is not while another may hold it.

    Args:
        halts: at least one.
        alone: whether every other rank of the trial had ended well by itself, or there is none.
    """
    may_hold_locks = {halt.doing for halt in halts} & {Doing.STUCK, Doing.UNCLEAR}
    blamed = Doing.STUCK if may_hold_locks else Doing.LOCKED
    stuck = sorted((halt for halt in halts if halt.doing is blamed), key=lambda halt: (halt.at, halt.rank))
    if stuck:
        first = stuck[0]
        tied = [halt.rank for halt in stuck[1:] if halt.at - first.at <= _skew(first, halt)]
        return Culprit((first.rank, *tied), "hang.not-waiting", (first.said, *_others(halts, first)))
    if alone and len(halts) == 1:
        return Culprit((halts[0].rank,), "hang.alone", (f"no other rank was left than rank {halts[0].rank}",))
    return Culprit((), "hang.undecided", tuple(halt.said for halt in halts[:_LINES]))


def is_alone(ranks: Mapping[int, RankRecord], world_size: int) -> bool:
    """Whether all ranks but one are known to have ended well."""
    well = sum(record.ended == ENDED_EXIT and record.exit_code == 0 for record in ranks.values())
    return well == world_size - 1


def _halt(record: RankRecord) -> Halt:
    what, frame = doing(record.stacks, record.device.kind if record.device is not None else None)
    return Halt(
        rank=record.rank,
        host=record.host,
        stage=record.beacon.stage if record.beacon is not None else Stage.UNKNOWN,
        at=record.beacon.at if record.beacon is not None else record.started_at,
        doing=what,
        frame=frame,
        completed=last_completed(record),
    )


def _others(halts: Sequence[Halt], first: Halt) -> list[str]:
    return [halt.said for halt in halts if halt is not first][: _LINES - 1]


def _skew(one: Halt, other: Halt) -> float:
    return SAME_HOST_SKEW if one.host == other.host else OTHER_HOST_SKEW
