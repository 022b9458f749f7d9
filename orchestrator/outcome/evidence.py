"""What is known of an attempt, and what was concluded from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.outcome.device_memory import DeviceMemory
from orchestrator.records.rank import RankRecord
from orchestrator.records.spec import AttemptRecord
from orchestrator.vocabulary import Cause, Stage

SAME_HOST_SKEW = 0.05
"""Seconds within which two events of one host's clock count as simultaneous."""
OTHER_HOST_SKEW = 1.0
"""The same between hosts: NTP keeps nodes of a cluster well below this."""


@dataclass(frozen=True)
class SchedulerRow:
    """One job or step as `sacct` gives it."""

    id: str
    """`123` for a job, `123.4` for a step."""
    state: str
    """As printed: `FAILED`, `OUT_OF_MEMORY`, `CANCELLED by 1000`, …"""
    exit_code: str | None = None
    """`code:signal`."""
    nodes: str | None = None
    reason: str | None = None

    @property
    def word(self) -> str:
        """The state without what follows it: `CANCELLED` for `CANCELLED by 1000`."""
        words = self.state.split()
        return words[0].rstrip("+").upper() if words else ""

    @classmethod
    def of_record(cls, said: Mapping[str, Any]) -> SchedulerRow | None:
        """The row in an attempt's `scheduler` field; None where it says neither a state nor a reason."""
        state = said.get("state")
        if not isinstance(state, str):
            state = ""  # nothing keeps accounts: what a step printed is all there is
        if not state and not said.get("reason"):
            return None
        job, step = said.get("job_id"), said.get("step_id")
        text = {key: said[key] for key in ("exit_code", "nodes", "reason") if isinstance(said.get(key), str)}
        return cls(id=str(step if step is not None else job), state=state, **text)


@dataclass(frozen=True)
class Evidence:
    """Everything known of one attempt. Nothing here is derived."""

    world_size: int
    train_iters: int
    steady_window: tuple[int, int]
    """First and last measured iteration, counted from 1, both included."""
    ranks: Mapping[int, RankRecord] = field(default_factory=dict)
    attempt: AttemptRecord | None = None
    scheduler: tuple[SchedulerRow, ...] = ()
    """Rows besides the one in `attempt.scheduler`, most particular (the step) first."""
    over: bool | None = None
    """Whether nothing of the attempt runs any more; None: as `attempt.ended_at` says."""


@dataclass(frozen=True)
class Outcome:
    """What was concluded.

    `label` is None where there is no answer yet: the attempt still runs, or its job ended it before its own end; and
    for a log that shows no failure.
    """

    label: str | None
    cause: Cause
    stage: Stage
    rank: int | None = None
    """The first rank to fail."""
    also_ranks: tuple[int, ...] = ()
    """Ranks that failed the same way within the clocks' skew of the first."""
    iteration: int | None = None
    """The last completed iteration of that rank, 0 for none; None where it cannot be told."""
    rules: tuple[str, ...] = ()
    """Ids of the rules that decided."""
    lines: tuple[str, ...] = ()
    """What they looked at."""
    notes: tuple[str, ...] = ()
    """What also happened and does not change the label."""
    memory: DeviceMemory | None = None
    """The numbers of the allocation that failed."""
