"""Everything of one trial, typed, for `show` and for whoever explains it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, func, select, text

from orchestrator.records.jsonfile import FormatError
from orchestrator.records.rank import RankRecord
from orchestrator.store.evidence import rank_record, unpack
from orchestrator.store.models import (
    RANK_BITS,
    Attempt,
    Effective,
    Iteration,
    Rank,
    Software,
    StageMemory,
    Study,
    StudyTrial,
    Trial,
)
from orchestrator.store.shaped import texts
from orchestrator.vocabulary import Stage

_STAGE_ORDER = {stage.value: stage.code for stage in Stage}


@dataclass(frozen=True)
class Membership:
    """A trial as a study asked for it."""

    study: str
    name: str
    role: str
    status: str
    reasons: list[str]
    step_ms: float | None = None
    """As `compare` of that study has it: of a control, the median of its passing runs there."""


@dataclass(frozen=True)
class StageSummary:
    """One stage over the ranks of an attempt. Sizes are bytes."""

    stage: str
    ranks: int
    entries: int
    """Of the rank that entered it most often."""
    peak_allocated: int | None
    peak_allocated_rank: int | None
    lowest_allocated: int | None
    """The smallest of the ranks' peaks: how uneven the stage is."""
    peak_reserved: int | None
    end_allocated: int | None
    seconds: float | None
    """Of the rank that spent most."""


@dataclass(frozen=True)
class IterationSummary:
    """One iteration over the ranks of an attempt."""

    number: int
    ranks: int
    milliseconds: float
    """Of the slowest rank."""
    loss: float | None
    grad_norm: float | None
    skipped: bool
    nan: bool
    tflops_per_gpu: float | None
    peak_allocated: int | None


@dataclass(frozen=True)
class RankSummary:
    """How one rank ended."""

    rank: int
    host: str
    ended: str
    exit_code: int | None
    signal: int | None
    stage: str | None
    iteration: int | None
    microbatch: int | None
    peak_allocated: int | None
    peak_allocated_stage: str | None
    peak_reserved: int | None
    exception_type: str | None
    exception_message: str | None
    forward_adds: int | None = None
    """What the forwards held at once: their peak, less what the last backward left. A pipeline's first stage holds
    more microbatches than its last one, whichever of them is larger."""
    recording_share: float | None = None
    """What recording by stage took of its steady steps, a fraction; None where none ended."""
    recording_paused: bool = False
    """Recording paused in some iterations of the steady window."""


@dataclass(frozen=True)
class AttemptDetail:
    """One execution. Sizes are bytes, times unix seconds."""

    id: int
    number: str
    decides: bool
    role: str
    study: str | None
    batch: str | None
    user: str | None
    state: str
    started_at: float | None
    ended_at: float | None
    label: str | None
    cause: str | None
    stage: str | None
    rank: int | None
    also_ranks: list[int]
    iteration: int | None
    rules: list[str]
    evidence: list[str]
    notes: list[str]
    failed_allocation: dict[str, Any] | None
    launch_error: str | None
    cut_short: str | None
    match_key: str | None
    device_kind: str | None
    device_name: str | None
    device_capacity: int | None
    hosts: list[str]
    peak_allocated: int | None
    peak_allocated_rank: int | None
    peak_allocated_stage: str | None
    peak_reserved: int | None
    step_ms: float | None
    step_ms_scatter: float | None
    step_gc_ms: float | None
    step_count: int | None
    tflops_per_gpu: float | None
    run_dir: str
    beacon_dir: str | None
    spec: dict[str, Any]
    software: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    ranks: list[RankSummary] = field(default_factory=list)
    stages: list[StageSummary] = field(default_factory=list)
    iterations: list[IterationSummary] = field(default_factory=list)


@dataclass(frozen=True)
class TrialDetail:
    """One trial with every execution of it, the newest last."""

    trial: str
    trainer: str
    world_size: int
    repeat: int
    origin: str
    is_control: bool
    requested: dict[str, Any]
    target: dict[str, Any] | None
    steady_window: tuple[int, int] | None
    train_iters: int | None
    studies: list[Membership] = field(default_factory=list)
    attempts: list[AttemptDetail] = field(default_factory=list)

    @property
    def deciding(self) -> AttemptDetail | None:
        """The attempt that speaks for the trial."""
        return next((attempt for attempt in self.attempts if attempt.decides), None)


def trial_detail(connection: Connection, trial: str) -> TrialDetail | None:
    """The trial of this id; None where there is none."""
    row = connection.execute(select(Trial.__table__).where(Trial.id == trial)).first()
    if row is None:
        return None
    attempts = connection.execute(
        select(Attempt.__table__, Study.name.label("study"))
        .outerjoin(Study, Study.id == Attempt.study_id)
        .where(Attempt.trial_id == trial)
        .order_by(Attempt.started_at, Attempt.id)
    )
    members = connection.execute(
        select(Study.name, StudyTrial.name.label("called"), StudyTrial.role, StudyTrial.status, StudyTrial.reasons)
        .join(Study, Study.id == StudyTrial.study_id)
        .where(StudyTrial.trial_id == trial)
        .order_by(Study.name)
    )
    found = connection.execute(text("SELECT study, step_ms FROM v_trials WHERE trial = :trial"), {"trial": trial})
    step_ms = {one.study: one.step_ms for one in found}
    return TrialDetail(
        trial=row.id,
        trainer=row.trainer,
        world_size=row.world_size,
        repeat=row.repeat,
        origin=row.origin,
        is_control=row.is_control,
        requested=row.requested,
        target=row.target,
        steady_window=(row.steady_first, row.steady_last) if row.steady_first and row.steady_last else None,
        train_iters=row.train_iters,
        studies=[
            Membership(one.name, one.called, one.role, one.status, texts(one.reasons), step_ms.get(one.name))
            for one in members
        ],
        attempts=[_attempt(connection, one) for one in attempts.all()],
    )


def rank_records(connection: Connection, attempt: int) -> dict[int, RankRecord]:
    """The records of an attempt's ranks as their files had them, by rank.

    Raises:
        FormatError: a newer release stored one.
    """
    query = (
        select(Rank.rank, Rank.evidence, Software.content.label("software"), Effective.content.label("effective"))
        .outerjoin(Software, Software.hash == Rank.software_hash)
        .outerjoin(Effective, Effective.hash == Rank.effective_hash)
        .where(Rank.attempt_id == attempt)
        .order_by(Rank.rank)
    )
    return {row.rank: rank_record(row.evidence, row.software, row.effective) for row in connection.execute(query)}


def _attempt(connection: Connection, row: Any) -> AttemptDetail:
    record = row.record or {}
    return AttemptDetail(
        id=row.id,
        number=row.number,
        decides=row.decides,
        role=row.role,
        study=row.study,
        batch=row.batch_id,
        user=row.user,
        state=row.state,
        started_at=row.started_at,
        ended_at=row.ended_at,
        label=row.label,
        cause=row.cause,
        stage=row.stage,
        rank=row.rank,
        also_ranks=row.also_ranks or [],
        iteration=row.iteration,
        rules=texts(row.rules),
        evidence=texts(row.evidence),
        notes=texts(row.notes),
        failed_allocation=row.failed_allocation,
        launch_error=record.get("launch_error"),
        cut_short=record.get("cut_short"),
        match_key=row.match_key,
        device_kind=row.device_kind,
        device_name=row.device_name,
        device_capacity=row.device_capacity,
        hosts=texts(row.hosts),
        peak_allocated=row.peak_allocated,
        peak_allocated_rank=row.peak_allocated_rank,
        peak_allocated_stage=row.peak_allocated_stage,
        peak_reserved=row.peak_reserved,
        step_ms=row.step_ms,
        step_ms_scatter=row.step_ms_scatter,
        step_gc_ms=row.step_gc_ms,
        step_count=row.step_count,
        tflops_per_gpu=row.tflops_per_gpu,
        run_dir=row.run_dir,
        beacon_dir=row.beacon_dir,
        spec=row.spec or {},
        software=_content(connection, Software, row.software_hash),
        effective=_content(connection, Effective, row.effective_hash),
        ranks=_ranks(connection, row.id),
        stages=_stages(connection, row.id),
        iterations=_iterations(connection, row.id),
    )


def _content(connection: Connection, model: type[Software] | type[Effective], key: str | None) -> dict[str, Any] | None:
    return connection.execute(select(model.content).where(model.hash == key)).scalar() if key else None


def _ranks(connection: Connection, attempt: int) -> list[RankSummary]:
    columns = [getattr(Rank, name) for name in RankSummary.__dataclass_fields__ if hasattr(Rank, name)]
    query = select(*columns).where(Rank.attempt_id == attempt).order_by(Rank.rank)
    adds = _forward_adds(connection, attempt)
    recorders = _recorders(connection, attempt)
    return [
        RankSummary(
            **row,
            forward_adds=adds.get(row["rank"]),
            recording_share=_share(recorders.get(row["rank"], {}).get("steady_share")),
            recording_paused=recorders.get(row["rank"], {}).get("paused") is True,
        )
        for row in connection.execute(query).mappings()
    ]


def _recorders(connection: Connection, attempt: int) -> dict[int, dict[str, Any]]:
    """By rank, what its recorder said of itself; without those that only a newer release can read."""
    found = dict[int, dict[str, Any]]()
    for rank, evidence in connection.execute(select(Rank.rank, Rank.evidence).where(Rank.attempt_id == attempt)):
        with contextlib.suppress(FormatError):
            said = unpack(evidence).get("recorder")
            found[rank] = said if isinstance(said, dict) else {}
    return found


def _share(value: object) -> float | None:
    return value if isinstance(value, float) else None


def _forward_adds(connection: Connection, attempt: int) -> dict[int, int]:
    """By rank, of those that got as far as a backward."""
    of_stage = [Stage.FORWARD.value, Stage.BACKWARD.value]
    query = select(StageMemory.__table__).where(_ranks_of(attempt), StageMemory.stage.in_(of_stage))
    peak, left = dict[int, int](), dict[int, int]()
    for row in connection.execute(query):
        rank = row.rank_id & (1 << RANK_BITS) - 1
        if row.stage == Stage.FORWARD.value and row.peak_allocated is not None:
            peak[rank] = row.peak_allocated
        elif row.stage == Stage.BACKWARD.value and row.end_allocated is not None:
            left[rank] = row.end_allocated
    return {rank: max(0, peak[rank] - left[rank]) for rank in peak.keys() & left.keys()}


def _ranks_of(attempt: int) -> ColumnElement[bool]:
    return StageMemory.rank_id.between(attempt << RANK_BITS, (attempt + 1 << RANK_BITS) - 1)


def _stages(connection: Connection, attempt: int) -> list[StageSummary]:
    by_stage: dict[str, list[Any]] = {}
    for row in connection.execute(
        select(StageMemory.__table__).where(_ranks_of(attempt)).order_by(StageMemory.rank_id)
    ):
        by_stage.setdefault(row.stage, []).append(row)
    return [
        _stage(stage, by_stage[stage])
        for stage in sorted(by_stage, key=lambda name: _STAGE_ORDER.get(name, len(Stage)))
    ]


def _stage(stage: str, rows: list[Any]) -> StageSummary:
    allocated = [(row.peak_allocated, row.rank_id) for row in rows if row.peak_allocated is not None]
    size, rank_id = max(allocated, key=lambda pair: (pair[0], -pair[1])) if allocated else (None, None)
    return StageSummary(
        stage=stage,
        ranks=len(rows),
        entries=max(row.entries for row in rows),
        peak_allocated=size,
        peak_allocated_rank=None if rank_id is None else rank_id & (1 << RANK_BITS) - 1,
        lowest_allocated=min(allocated)[0] if allocated else None,
        peak_reserved=max((row.peak_reserved for row in rows if row.peak_reserved is not None), default=None),
        end_allocated=max((row.end_allocated for row in rows if row.end_allocated is not None), default=None),
        seconds=max((row.seconds for row in rows if row.seconds is not None), default=None),
    )


def _iterations(connection: Connection, attempt: int) -> list[IterationSummary]:
    within = Iteration.rank_id.between(attempt << RANK_BITS, (attempt + 1 << RANK_BITS) - 1)
    query = (
        select(
            Iteration.number,
            func.count().label("ranks"),
            func.max(Iteration.milliseconds).label("milliseconds"),
            func.max(Iteration.loss).label("loss"),
            func.max(Iteration.grad_norm).label("grad_norm"),
            func.max(_as_number(Iteration.skipped)).label("skipped"),
            func.max(_as_number(Iteration.nan)).label("nan"),
            func.avg(Iteration.tflops_per_gpu).label("tflops_per_gpu"),
            func.max(Iteration.peak_allocated).label("peak_allocated"),
        )
        .where(within)
        .group_by(Iteration.number)
        .order_by(Iteration.number)
    )
    return [
        IterationSummary(**{**row, "skipped": bool(row["skipped"]), "nan": bool(row["nan"])})
        for row in connection.execute(query).mappings()
    ]


def _as_number(column: Any) -> Any:
    return case((column, 1), else_=0)
