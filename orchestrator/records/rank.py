"""What one rank leaves behind: one JSON file per rank and attempt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from orchestrator.vocabulary import Stage

ENDED_RUNNING = "running"
ENDED_EXIT = "exit"
ENDED_SIGNAL = "signal"
ENDED_STALL = "stall"
ENDED_TIME_LIMIT = "time_limit"
ENDED_TERMINATED = "terminated"
ENDED_LOST = "lost"


@dataclass(frozen=True)
class Device:
    """The accelerator of a rank; `kind` is `cuda` or `cpu`."""

    kind: str
    name: str | None = None
    uuid: str | None = None
    capacity_bytes: int | None = None
    clocks: dict[str, Any] = field(default_factory=dict)
    throttle_reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LastBeacon:
    """Where the rank was when its beacon was last written. `at` is unix seconds."""

    stage: Stage
    iteration: int
    microbatch: int
    at: float


@dataclass(frozen=True)
class StageMemory:
    """Memory of one stage, over the whole run or one iteration. Bytes; None where it was not read."""

    stage: Stage
    entries: int
    """Times the stage was entered."""
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    end_allocated: int | None = None
    end_reserved: int | None = None
    seconds: float | None = None
    """Host time spent in the stage itself, nested stages excluded."""


@dataclass(frozen=True)
class IterationRecord:
    """One training iteration, counted from 1. Peaks are the run's maximum up to its end."""

    number: int
    milliseconds: float
    loss: float | None = None
    grad_norm: float | None = None
    skipped: bool = False
    nan: bool = False
    tflops_per_gpu: float | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    gc_milliseconds: float | None = None
    """Of `milliseconds`, what Python's garbage collector took."""
    stages: list[StageMemory] = field(default_factory=list)


@dataclass(frozen=True)
class Frame:
    """One line of a traceback, outermost first."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class ExceptionRecord:
    """What the trainer raised. `stage` is where the seams were when it was raised."""

    type: str
    """Qualified name, for example `torch.OutOfMemoryError`."""
    message: str
    frames: list[Frame] = field(default_factory=list)
    stage: Stage | None = None
    iteration: int | None = None
    microbatch: int | None = None
    at: float | None = None
    chain: list[str] = field(default_factory=list)
    """Types and messages of the exceptions behind it, nearest first."""
    chain_stages: list[Stage | None] = field(default_factory=list)
    """The stage that each exception of `chain` was raised in; None where it left no stage."""


@dataclass(frozen=True)
class RankRecord:
    """Everything one rank measured, and how it ended. Times are unix seconds, sizes bytes."""

    SCHEMA: ClassVar[int] = 1

    trial: str
    attempt: str
    rank: int
    world_size: int
    local_rank: int
    host: str
    started_at: float
    ended_at: float | None
    ended: str
    """`exit`, `signal`, `stall`, `time_limit`, `terminated` (asked to end), `lost` (supervisor gone: written by
    the driver from the beacon), `running` (measured, and not ended when this was written)."""
    exit_code: int | None = None
    signal: int | None = None
    beacon: LastBeacon | None = None
    measured: bool = False
    """The steady window ended: what came after cannot spoil the measurement."""
    device: Device | None = None
    stages: list[StageMemory] = field(default_factory=list)
    iterations: list[IterationRecord] = field(default_factory=list)
    allocator_retries: int | None = None
    allocator_ooms: int | None = None
    optimizer_state: bool | None = None
    """Whether optimizer state existed at the end of the window; None where it was not checked."""
    exception: ExceptionRecord | None = None
    host_oom_kills: int | None = None
    """Processes of this rank's cgroup that the kernel's OOM killer ended meanwhile; None where it is not counted."""
    stderr_tail: str = ""
    stacks: str = ""
    """What the trainer's threads were doing, as faulthandler prints it, since it stood still and until it was ended;
    empty where it moved to the last, or printed nothing."""
    software: dict[str, Any] = field(default_factory=dict)
    effective: dict[str, Any] | None = None
    """On rank 0: the configuration after the framework finished it."""
    recorder: dict[str, Any] = field(default_factory=dict)
    """What recording cost: `seconds`, `calls`, whether it `paused` inside the steady window, and `steady_share`, its
    share of that window's steps (None where none of them ended). On CUDA also by which `meter` it read memory:
    `compiled` or `python`."""
    notes: list[str] = field(default_factory=list)
    schema: int = SCHEMA
