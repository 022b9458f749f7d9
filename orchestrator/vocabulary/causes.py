"""Why a rank or a trial stopped, and what follows from it."""

from __future__ import annotations

from enum import Enum


class Consequence(str, Enum):
    """What is done with a trial that ended with a cause."""

    RESULT = "result"
    """Kept; never repeated by itself."""
    RETRY = "retry"
    """Another attempt, up to a limit."""
    FIX = "fix"
    """The user must act first."""

    def __str__(self) -> str:
        return self.value


class Cause(str, Enum):
    """Why a trial stopped; `none` for one that was not stopped by anything."""

    DEVICE_OOM = "device_oom"
    FRAGMENTATION = "fragmentation"
    NCCL_OOM = "nccl_oom"
    NON_FINITE = "non_finite"
    SKIPPED_STEPS = "skipped_steps"
    KERNEL_RESOURCES = "kernel_resources"
    SHARED_GPU = "shared_gpu"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    HARDWARE = "hardware"
    COMMUNICATION = "communication"
    HANG = "hang"
    CASCADE = "cascade"
    TIME_LIMIT = "time_limit"
    INVALID_CONFIG = "invalid_config"
    IMPORT_ERROR = "import_error"
    REVISION_MISMATCH = "revision_mismatch"
    SUBMISSION = "submission"
    LAUNCH = "launch"
    STORAGE = "storage"
    DATA = "data"
    HOST_OOM = "host_oom"
    ILLEGAL_ACCESS = "illegal_access"
    GPU_LIBRARY = "gpu_library"
    CRASH = "crash"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    NONE = "none"

    def __str__(self) -> str:
        return self.value


OOM_CAUSES = frozenset({Cause.DEVICE_OOM, Cause.FRAGMENTATION, Cause.NCCL_OOM})
"""Causes that give the OOM label of their stage."""

_RESULT = OOM_CAUSES | {Cause.NON_FINITE, Cause.SKIPPED_STEPS, Cause.KERNEL_RESOURCES, Cause.NONE}
_RETRY = frozenset(
    {
        Cause.SHARED_GPU,
        Cause.NODE_FAILURE,
        Cause.PREEMPTED,
        Cause.HARDWARE,
        Cause.COMMUNICATION,
        Cause.HANG,
        Cause.CASCADE,
    }
)


def consequence_of(cause: Cause) -> Consequence:
    """What follows from a cause: every cause has exactly one consequence."""
    if cause in _RESULT:
        return Consequence.RESULT
    if cause in _RETRY:
        return Consequence.RETRY
    return Consequence.FIX
