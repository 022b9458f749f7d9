"""One attempt of a trial as the analysis sees it: configuration, outcome, and what its ranks measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL
from orchestrator.vocabulary import PASS, Cause, Stage

ORIGIN_MEASURED = "measured"
ORIGIN_PUBLISHED = "published"
ORIGIN_IMPORTED = "imported"

NOT_RUN, RUNNING, CUT_SHORT = "not run yet", "running", "cut short"
HELD_BACK = "not run yet: held back, as its control and another failed alike at the start"
"""What stands for the outcome of a trial that has none: it may yet get one."""


class PeakScope(str, Enum):
    """What a peak is the maximum of."""

    ALL_RANKS = "all_ranks"
    """Every rank of the job left its own peak."""
    REPORTED_MAX = "reported_max"
    """Somebody's log reported a maximum; which ranks it covers is not known."""
    ONE_RANK = "one_rank"
    """Some ranks are missing: the hot one may be among them."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class StagePeak:
    """The largest memory of one stage over all ranks, from set-up to the end of the steady window. Bytes."""

    rank: int | None
    """The rank with the largest allocated peak."""
    stage: Stage | None
    allocated: int | None
    reserved: int | None = None
    reserved_rank: int | None = None


@dataclass(frozen=True)
class Row:
    """One attempt of a trial. Sizes are bytes; absent is None."""

    trial: str
    attempt: str | None
    name: str
    requested: Mapping[str, Any]
    """The requested configuration: the four recompute settings and the groups."""
    study: str = ""
    origin: str = ORIGIN_MEASURED
    role: str = ROLE_TRIAL
    repeat: int = 0
    batch: str | None = None
    """The job that it ran in: its own control is the one of the same batch."""
    started_at: float | None = None
    effective: Mapping[str, Any] | None = None
    software: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    device_kind: str | None = None
    device_name: str | None = None
    device_capacity: int | None = None
    memory_limit: int | None = None
    world_size: int | None = None
    ranks_reported: int | None = None
    steady_window: tuple[int, int] | None = None
    train_iters: int | None = None
    label: str | None = None
    """None until it has a result, and where a source gives no outcome."""
    outcome_text: str | None = None
    """A published row's outcome in its source's terms; of a trial without a result, what became of it so far."""
    cause: str | None = None
    stage: Stage | None = None
    rank: int | None = None
    last_iteration: int | None = None
    evidence: tuple[str, ...] = ()
    peak_scope: PeakScope | None = None
    peaks: tuple[StagePeak, ...] = ()
    step_ms: float | None = None
    """Mean over the steady window of each iteration's slowest rank; for a published row the source's own figure."""
    step_scatter_ms: float | None = None
    """Standard deviation of those iterations, without their garbage collection where that is known."""
    step_gc_ms: float | None = None
    """What Python's garbage collector took of a step, mean over the window."""
    tflops_per_gpu: float | None = None
    other_passes_ms: tuple[float, ...] = ()
    """Of a control: step times of its passes in other studies' jobs. They are no runs of this one's, and tell how far
    the control's time moves by itself."""
    hosts: tuple[str, ...] = ()
    """The nodes that it ran on; empty where that is not known."""
    losses: Mapping[int, float] = field(default_factory=dict)
    replays: int | None = None
    """Times a rank entered the replay stage, summed over ranks; None where it was not recorded."""
    allocator_retries: int | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Stored values that are none of theirs, foreign or damaged, so that they count as absent."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Where a published row comes from: table, address, revision, what its peak means."""

    @property
    def passed(self) -> bool:
        return self.label == PASS

    @property
    def is_open(self) -> bool:
        """Whether it has no result yet: not run, running, cut short or cancelled."""
        return self.label in (None, f"failed:{Cause.CANCELLED}") and self.origin != ORIGIN_PUBLISHED

    @property
    def is_control_run(self) -> bool:
        """Whether the job ran it as the control that opens or closes it."""
        return self.role in (ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST)

    @property
    def peak(self) -> StagePeak | None:
        """The hot rank and stage: the largest allocated peak of any rank."""
        known = [peak for peak in self.peaks if peak.allocated is not None]
        return max(known, key=_by_allocated, default=None)

    @property
    def step_scatter(self) -> float | None:
        """The window's scatter as a fraction of the step time."""
        return self.step_scatter_ms / self.step_ms if self.step_scatter_ms is not None and self.step_ms else None

    @property
    def reserved(self) -> int | None:
        """Largest reserved peak of any rank."""
        return max((peak.reserved for peak in self.peaks if peak.reserved is not None), default=None)

    @property
    def stages_known(self) -> bool:
        """Whether its peaks are known by stage, so that one can say where memory sits."""
        return any(peak.stage is not None for peak in self.peaks)

    def peak_in(self, stages: frozenset[Stage]) -> StagePeak | None:
        """The hot rank within some stages."""
        known = [peak for peak in self.peaks if peak.allocated is not None and peak.stage in stages]
        return max(known, key=_by_allocated, default=None)


def _by_allocated(peak: StagePeak) -> tuple[int, int, int]:
    # Ties go to the lowest rank and the earliest stage, so that an answer never depends on the order of rows.
    return (peak.allocated or 0, -(peak.rank or 0), -(peak.stage.code if peak.stage else 0))
