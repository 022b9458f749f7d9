"""The tables. Sizes are bytes, times are unix seconds, durations carry their unit in the name; absent is NULL.

Raw evidence (`attempts.record`, `ranks.evidence`) is kept beside what is derived from it, so that newer rules can be
applied to old trials. Every table can be rebuilt from a results folder.
"""

from __future__ import annotations

from typing import Annotated, Any

from sqlalchemy import BigInteger, Double, ForeignKey, Index, Integer, LargeBinary, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from orchestrator.store.shaped import Shaped

ORIGIN_MEASURED = "measured"
ORIGIN_PUBLISHED = "published"
ORIGIN_IMPORTED = "imported"

STATE_RUNNING = "running"
STATE_ENDED = "ended"

RANK_BITS = 20
"""A rank's row is numbered `attempt << RANK_BITS | rank`, so that its children need no look-up."""

_BIG_ID = BigInteger().with_variant(Integer(), "sqlite")

Size = Annotated[int, mapped_column(BigInteger)]
Word = Annotated[str, mapped_column(Text)]
Digest = Annotated[str, mapped_column(Text)]
Prose = Annotated[str, mapped_column(Text)]


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: Shaped(dict), list[Any]: Shaped(list), float: Double(), int: BigInteger()}  # noqa: RUF012 - SQLAlchemy's own interface


class Study(Base):
    """A named set of trials asked together."""

    __tablename__ = "studies"

    id: Mapped[int] = mapped_column(_BIG_ID, primary_key=True)
    name: Mapped[Prose] = mapped_column(unique=True)
    created_at: Mapped[float | None]
    settings: Mapped[dict[str, Any] | None]


class Trial(Base):
    """One requested configuration and repeat: what was asked, whatever came of it."""

    __tablename__ = "trials"

    id: Mapped[Word] = mapped_column(primary_key=True)
    trainer: Mapped[Word]
    world_size: Mapped[int]
    repeat: Mapped[int]
    origin: Mapped[Word]
    requested: Mapped[dict[str, Any]]
    target: Mapped[dict[str, Any] | None]
    """What it is to run on and with, beside its configuration: environment, memory limit, GPU type, image, ..."""
    is_control: Mapped[bool]
    recompute_granularity: Mapped[Word | None]
    recompute_modules: Mapped[Prose | None]
    """As written on a command line: `[]`, `[core_attn,mlp]`; NULL where it is null."""
    recompute_method: Mapped[Word | None]
    recompute_num_layers: Mapped[Word | None]
    steady_first: Mapped[int | None]
    steady_last: Mapped[int | None]
    train_iters: Mapped[int | None]
    first_seen: Mapped[float]


class StudyTrial(Base):
    """A trial as one study asked for it."""

    __tablename__ = "study_trials"

    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True)
    trial_id: Mapped[Word] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True, index=True)
    name: Mapped[Prose]
    position: Mapped[int]
    role: Mapped[Word]
    status: Mapped[Word]
    """What the plan said: `new`, `known`, `rejected`; or `batch`, where only a batch file told of it."""
    reasons: Mapped[list[Any] | None]


class Batch(Base):
    """What one job was given."""

    __tablename__ = "batches"

    id: Mapped[Word] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[float]
    user: Mapped[Prose | None]
    folder: Mapped[Prose]
    launcher: Mapped[dict[str, Any]]
    state: Mapped[Word | None]
    """What its driver last said: `running`, `finished`, `cancelled`, ...; NULL where it has not begun."""
    host: Mapped[Prose | None]
    heartbeat: Mapped[float | None]
    job: Mapped[dict[str, Any] | None]
    parallel_trials: Mapped[int]
    max_attempts: Mapped[int]


class BatchTrial(Base):
    """A place in a batch; controls may hold several."""

    __tablename__ = "batch_trials"

    batch_id: Mapped[Word] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[Word] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    name: Mapped[Prose]
    role: Mapped[Word]


class Software(Base):
    """A set of versions and commits, kept once."""

    __tablename__ = "software"

    hash: Mapped[Digest] = mapped_column(primary_key=True)
    content: Mapped[dict[str, Any]]


class Effective(Base):
    """A configuration after the framework finished it, kept once."""

    __tablename__ = "effective"

    hash: Mapped[Digest] = mapped_column(primary_key=True)
    content: Mapped[dict[str, Any]]


class Attempt(Base):
    """One execution of a trial, what was derived from its ranks' records, and its figures over all ranks."""

    __tablename__ = "attempts"
    __table_args__ = (Index("ix_attempts_trial_decides", "trial_id", "decides", "state", "label"),)

    id: Mapped[int] = mapped_column(_BIG_ID, primary_key=True)
    uid: Mapped[Digest] = mapped_column(unique=True)
    """Hash of trial, number, batch and start: the same in every database that holds this execution."""
    trial_id: Mapped[Word] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"))
    number: Mapped[Word]
    batch_id: Mapped[Word | None] = mapped_column(ForeignKey("batches.id", ondelete="SET NULL"), index=True)
    study_id: Mapped[int | None] = mapped_column(ForeignKey("studies.id", ondelete="SET NULL"), index=True)
    name: Mapped[Prose]
    role: Mapped[Word]
    user: Mapped[Prose | None]
    run_dir: Mapped[Prose]
    beacon_dir: Mapped[Prose | None]
    state: Mapped[Word] = mapped_column(index=True)
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]

    decides: Mapped[bool]
    """Whether this attempt speaks for its trial: the newest with a result, else the newest."""
    label: Mapped[Word | None] = mapped_column(index=True)
    cause: Mapped[Word | None]
    stage: Mapped[Word | None]
    rank: Mapped[int | None]
    iteration: Mapped[int | None]
    """The last that the rank which decided had completed; 0 for none."""
    classifier: Mapped[Word | None]

    match_key: Mapped[Digest | None] = mapped_column(index=True)
    ranks_recorded: Mapped[int]
    device_kind: Mapped[Word | None]
    device_name: Mapped[Prose | None]
    device_capacity: Mapped[Size | None]
    software_hash: Mapped[Digest | None] = mapped_column(ForeignKey("software.hash"), index=True)
    effective_hash: Mapped[Digest | None] = mapped_column(ForeignKey("effective.hash"), index=True)
    peak_allocated: Mapped[Size | None]
    """Largest over all ranks, from set-up to the end of the steady window."""
    peak_allocated_rank: Mapped[int | None]
    peak_allocated_stage: Mapped[Word | None]
    peak_reserved: Mapped[Size | None]
    peak_reserved_rank: Mapped[int | None]
    peak_reserved_stage: Mapped[Word | None]
    step_ms: Mapped[float | None]
    """Mean over the steady window of each iteration's slowest rank."""
    step_ms_scatter: Mapped[float | None]
    """Standard deviation of those iterations, less what garbage collection took of each where that is known."""
    step_count: Mapped[int | None]
    tflops_per_gpu: Mapped[float | None]
    last_loss: Mapped[float | None]
    replays: Mapped[Size | None]
    """Times that ranks entered the replay stage; NULL where no stage was recorded."""
    allocator_retries: Mapped[Size | None]
    allocator_ooms: Mapped[Size | None]

    # Last, since SQLite reads a row from its beginning: what is long.
    record: Mapped[dict[str, Any] | None]
    """What the driver wrote of it."""
    spec: Mapped[dict[str, Any] | None]
    """What its ranks were given, the configuration left out."""
    also_ranks: Mapped[list[Any] | None]
    rules: Mapped[list[Any] | None]
    evidence: Mapped[list[Any] | None]
    """The lines that decided."""
    notes: Mapped[list[Any] | None]
    failed_allocation: Mapped[dict[str, Any] | None]
    """The numbers of the allocation that failed."""
    hosts: Mapped[list[Any] | None]
    losses: Mapped[list[Any] | None]
    """`[iteration, loss]` of the lowest rank that has losses; a loss that is not finite is its name."""
    stage_peaks: Mapped[dict[str, Any] | None]
    """Stage to `[allocated, its rank, reserved, its rank]` over all ranks, to the window's end."""
    step_gc_ms: Mapped[float | None]
    """What garbage collection took of a step, mean over the window; NULL where no rank measured it."""


class Rank(Base):
    """What one rank of an attempt left behind."""

    __tablename__ = "ranks"
    __table_args__ = (UniqueConstraint("attempt_id", "rank", name="uq_ranks_attempt_rank"),)

    id: Mapped[int] = mapped_column(_BIG_ID, primary_key=True, autoincrement=False)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"))
    rank: Mapped[int]
    local_rank: Mapped[int]
    host: Mapped[Prose]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    ended: Mapped[Word]
    exit_code: Mapped[int | None]
    signal: Mapped[int | None]
    stage: Mapped[Word | None]
    iteration: Mapped[int | None]
    microbatch: Mapped[int | None]
    measured: Mapped[bool]
    device_name: Mapped[Prose | None]
    device_uuid: Mapped[Prose | None]
    device_capacity: Mapped[Size | None]
    allocator_retries: Mapped[Size | None]
    allocator_ooms: Mapped[Size | None]
    optimizer_state: Mapped[bool | None]
    exception_type: Mapped[Prose | None]
    exception_message: Mapped[Prose | None]
    exception_stage: Mapped[Word | None]
    peak_allocated: Mapped[Size | None]
    """From set-up to the end of the steady window."""
    peak_allocated_stage: Mapped[Word | None]
    peak_reserved: Mapped[Size | None]
    peak_reserved_stage: Mapped[Word | None]
    software_hash: Mapped[Digest | None] = mapped_column(ForeignKey("software.hash"))
    effective_hash: Mapped[Digest | None] = mapped_column(ForeignKey("effective.hash"))
    evidence: Mapped[bytes] = mapped_column(LargeBinary)
    """The whole record, software and effective configuration left out: see `evidence.pack`."""


class StageMemory(Base):
    """One stage of one rank, over the whole run; `window_` to the end of the steady window only."""

    __tablename__ = "stage_memory"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - SQLAlchemy's own interface

    rank_id: Mapped[int] = mapped_column(_BIG_ID, ForeignKey("ranks.id", ondelete="CASCADE"), primary_key=True)
    stage: Mapped[Word] = mapped_column(primary_key=True)
    entries: Mapped[Size]
    peak_allocated: Mapped[Size | None]
    peak_reserved: Mapped[Size | None]
    end_allocated: Mapped[Size | None]
    end_reserved: Mapped[Size | None]
    seconds: Mapped[float | None]
    window_allocated: Mapped[Size | None]
    window_reserved: Mapped[Size | None]


class Iteration(Base):
    """One iteration of one rank. A loss that is not finite is NULL, and `nan` is set."""

    __tablename__ = "iterations"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - SQLAlchemy's own interface

    rank_id: Mapped[int] = mapped_column(_BIG_ID, ForeignKey("ranks.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    milliseconds: Mapped[float]
    loss: Mapped[float | None]
    grad_norm: Mapped[float | None]
    skipped: Mapped[bool]
    nan: Mapped[bool]
    tflops_per_gpu: Mapped[float | None]
    peak_allocated: Mapped[Size | None]
    peak_reserved: Mapped[Size | None]


class Source(Base):
    """A file or folder that was collected, as it was then, and what was wrong with it."""

    __tablename__ = "sources"

    path: Mapped[Prose] = mapped_column(primary_key=True)
    stamp: Mapped[Size | None]
    """The folder's modification time in nanoseconds; NULL where it was too recent to tell a later change."""
    signature: Mapped[Prose]
    problem: Mapped[Prose | None]
