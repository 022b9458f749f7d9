"""Where a rank was."""

from __future__ import annotations

from enum import Enum


class Stage(str, Enum):
    """A part of a training job that one rank can be in.

    The position in this list is the code stored in a beacon: append, never reorder.
    """

    VALIDATE = "validate"
    LAUNCH = "launch"
    STARTUP = "startup"
    DISTRIBUTED_INIT = "distributed_init"
    MODEL_BUILD = "model_build"
    OPTIMIZER_BUILD = "optimizer_build"
    DATA_BUILD = "data_build"
    CHECKPOINT_LOAD = "checkpoint_load"
    GRAPH_CAPTURE = "graph_capture"
    FORWARD = "forward"
    BACKWARD = "backward"
    REPLAY = "replay"
    GRAD_SYNC = "grad_sync"
    OPTIMIZER_INIT = "optimizer_init"
    OPTIMIZER_STEP = "optimizer_step"
    BETWEEN_STEPS = "between_steps"
    EVALUATE = "evaluate"
    CHECKPOINT_SAVE = "checkpoint_save"
    TEARDOWN = "teardown"
    UNKNOWN = "unknown"

    code: int
    """The small integer a beacon stores for this stage. An attribute, because hashing a member runs Python code."""

    def __new__(cls, value: str) -> Stage:
        member = str.__new__(cls, value)
        member._value_ = value
        member.code = len(cls.__members__)
        return member

    def __str__(self) -> str:
        return str.__str__(self)

    @classmethod
    def from_code(cls, code: int) -> Stage:
        """The stage of a beacon's code; a code of a newer release reads as `unknown`."""
        return _STAGES[code] if 0 <= code < len(_STAGES) else cls.UNKNOWN


_STAGES = tuple(Stage)

SETUP_STAGES = frozenset(
    {
        Stage.VALIDATE,
        Stage.LAUNCH,
        Stage.STARTUP,
        Stage.DISTRIBUTED_INIT,
        Stage.MODEL_BUILD,
        Stage.OPTIMIZER_BUILD,
        Stage.DATA_BUILD,
    }
)
"""Stages before the first forward that have no label of their own."""
