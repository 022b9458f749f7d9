"""What a job gets (a batch) and what a rank gets (one trial's specification)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

ROLE_TRIAL = "trial"
ROLE_CONTROL_FIRST = "control-first"
ROLE_CONTROL_LAST = "control-last"


@dataclass(frozen=True)
class TrialSpec:
    """One trial as its ranks see it: what to train, for how long, and where to leave records.

    `config` is the requested configuration as plain JSON: the four recompute settings and the groups `model`,
    `parallelism`, `precision`, `training`, `trainer` and `revisions`.
    """

    SCHEMA: ClassVar[int] = 1

    trial: str
    attempt: str
    """Number of this execution within the trial, three digits: also its folder's name."""
    trainer: str
    """`mcore_cpu` or `bridge`."""
    world_size: int
    config: dict[str, Any]
    run_dir: str
    """The attempt's folder, on storage that every rank and the driver see."""
    beacon_dir: str
    """A node-local folder that the host sees too; holds beacons and facts while the trial runs."""
    steady_window: tuple[int, int]
    """First and last iteration of the measured window, counted from 1, both included."""
    train_iters: int
    stall_seconds: float = 300.0
    time_limit_seconds: float | None = None
    memory_limit_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    """Set in the trainer before its first import."""
    schema: int = SCHEMA


@dataclass(frozen=True)
class BatchTrial:
    """One trial of a batch; attempts of it are numbered when they start."""

    trial: str
    name: str
    """What a person calls it: the settings that set it apart within the study."""
    role: str
    trainer: str
    world_size: int
    config: dict[str, Any]
    steady_window: tuple[int, int]
    train_iters: int
    stall_seconds: float = 300.0
    time_limit_seconds: float | None = None
    memory_limit_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    repeat: int = 0


@dataclass(frozen=True)
class Batch:
    """What one job runs: its trials in order, and how to start a step. Read by the driver."""

    SCHEMA: ClassVar[int] = 1

    batch: str
    study: str
    created_at: float
    results_dir: str
    trials: list[BatchTrial]
    launcher: dict[str, Any]
    """How ranks are started: `kind` (`local`, `slurm`) and what that kind needs."""
    parallel_trials: int = 1
    max_attempts: int = 1
    """Executions a trial may have in this batch when its cause says retry."""
    spent: dict[str, int] = field(default_factory=dict)
    """By trial, how many of those executions earlier jobs had, which left this one to do."""
    cut_short: list[str] = field(default_factory=list)
    """Trials that ran in such a job until its time limit."""
    avoid: list[str] = field(default_factory=list)
    """Nodes on which trials failed there in a way that lies with the node."""
    schema: int = SCHEMA


@dataclass(frozen=True)
class AttemptRecord:
    """What the driver knows of one attempt. Written when it starts and again when it ends."""

    SCHEMA: ClassVar[int] = 1

    trial: str
    attempt: str
    batch: str
    study: str
    name: str
    role: str
    trainer: str
    world_size: int
    started_at: float
    launcher: str
    repeat: int = 0
    ended_at: float | None = None
    cancelled: bool = False
    cut_short: str | None = None
    """Why it ended before its own end: `job_time_limit`, `driver_signal`, `driver_lost` (the driver was killed, and
    whoever found the attempt wrote its end); None where it did not."""
    launch_error: str | None = None
    """Why no rank could be started, in the words of what refused."""
    exit_codes: dict[str, int] = field(default_factory=dict)
    """Supervisor exit status by rank, as the launcher saw it; negative is a signal."""
    scheduler: dict[str, Any] | None = None
    """Job and step state as Slurm said it: `job_id`, `step_id`, `state`, `exit_code`, `nodes`, …"""
    host: str | None = None
    """Where the driver ran."""
    notes: list[str] = field(default_factory=list)
    """What could not be brought home from a node, and the like."""
    schema: int = SCHEMA
