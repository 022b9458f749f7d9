"""Where a traceback was raised, by the names of its frames."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from orchestrator.outcome.frame_places import CONSTRUCTOR, PLACES, WORKER_FETCH
from orchestrator.outcome.frame_rules import CONTAINERS, OUTRANKS_ALL, FrameRule, SourceFrame
from orchestrator.vocabulary import Stage


@dataclass(frozen=True)
class Located:
    """A stage, the rule that said so and the frame that it looked at; `unknown` and None where none did."""

    stage: Stage = Stage.UNKNOWN
    rule: str | None = None
    frame: SourceFrame | None = None


class _Table(Enum):
    OUTRANKS_ALL = 1
    CONTAINERS = 2
    PLACES = 3
    WORKER = 4
    CONSTRUCTOR = 5


_TABLES = {
    _Table.OUTRANKS_ALL: OUTRANKS_ALL,
    _Table.CONTAINERS: CONTAINERS,
    _Table.PLACES: PLACES,
    _Table.WORKER: (WORKER_FETCH,),
    _Table.CONSTRUCTOR: (CONSTRUCTOR,),
}
_CHECKPOINT_FILES = re.compile(
    r"tensor_parallel/random\.py$|mpu/random\.py$|utils/checkpoint\.py$|activation_checkpointing/checkpointing\.py$|"
    r"transformer_engine/pytorch/distributed\.py$|core/recompute\.py$|transformer_engine\.py$"
)
_RUNS_BACKWARD = re.compile(r"autograd(?:\.|/__init__|/graph)|_execution_engine|\.backward\(")
_TAKEN_BY_FORWARD = frozenset(
    {
        None,
        Stage.FORWARD,
        Stage.OPTIMIZER_STEP,
        Stage.VALIDATE,
        Stage.MODEL_BUILD,
        Stage.DISTRIBUTED_INIT,
        Stage.BETWEEN_STEPS,
    }
    | {Stage.DATA_BUILD, Stage.OPTIMIZER_BUILD}
)
"""What a forward inside replaces: an optimizer's step runs it where it is given a closure."""
_BUILDS = frozenset(
    {Stage.MODEL_BUILD, Stage.OPTIMIZER_BUILD, Stage.DATA_BUILD, Stage.VALIDATE, Stage.DISTRIBUTED_INIT}
)
_STEPS = frozenset(
    {Stage.FORWARD, Stage.BACKWARD, Stage.REPLAY, Stage.GRAD_SYNC, Stage.OPTIMIZER_STEP, Stage.OPTIMIZER_INIT}
)


def stage_of(frames: Iterable[SourceFrame]) -> Located:
    """The stage in which a traceback was raised.

    A checkpoint's frame is replay only below its backward: the same function is called in forward. A replay ends where
    its own backward begins. Gradient synchronisation and the optimizer win over the backward that they run in.
    """
    frames = [*frames]
    frames += _called_by(frames[-1:])
    for table in (_Table.OUTRANKS_ALL, _Table.CONTAINERS):
        container = _innermost(table, frames)
        if container is not None:
            return container
    walk = _Walk()
    for frame in frames:
        walk.enter(frame)
    if walk.found is not None:
        return walk.found
    return _innermost(_Table.WORKER, frames) or _innermost(_Table.CONSTRUCTOR, frames) or Located()


class _Walk:
    """Where a traceback is, frame by frame from the outermost."""

    def __init__(self) -> None:
        self.found: Located | None = None
        self._below_checkpoint = False

    def enter(self, frame: SourceFrame) -> None:
        place = _rule_for(_Table.PLACES, frame.file, frame.function, frame.code)
        if place is None:
            return
        stage = self._taken(place.stage, frame)
        if stage is not None:
            self.found = Located(stage, place.id, frame)

    def _taken(self, stage: Stage, frame: SourceFrame) -> Stage | None:
        """The stage to be in after a frame of this stage; None to stay."""
        now = self.found.stage if self.found is not None else None
        if stage is Stage.BACKWARD:
            of_checkpoint = _CHECKPOINT_FILES.search(frame.file) is not None
            self._below_checkpoint = of_checkpoint and not _RUNS_BACKWARD.search(frame.code)
            return Stage.REPLAY if self._below_checkpoint and "run_function" in frame.code else stage
        if stage is Stage.FORWARD:
            if now is Stage.BACKWARD and self._below_checkpoint:
                return Stage.REPLAY
            return stage if now in _TAKEN_BY_FORWARD else None
        if (stage in _BUILDS and now in _STEPS) or (stage is Stage.OPTIMIZER_STEP and now is Stage.OPTIMIZER_INIT):
            return None
        return stage


def _called_by(frames: list[SourceFrame]) -> list[SourceFrame]:
    """What the innermost frame was calling, where its source was printed: tracebacks are quoted cut off."""
    return [
        SourceFrame("", name, line=frame.line)
        for frame in frames
        for name in re.findall(r"(?<!\braise )\b([A-Za-z_]\w*)\(", frame.code)[:1]
        if not name[0].isupper()
    ]


def _innermost(table: _Table, frames: list[SourceFrame]) -> Located | None:
    for frame in reversed(frames):
        rule = _rule_for(table, frame.file, frame.function, frame.code)
        if rule is not None:
            return Located(rule.stage, rule.id, frame)
    return None


@lru_cache(maxsize=16384)
def _rule_for(table: _Table, file: str, function: str, code: str) -> FrameRule | None:
    frame = SourceFrame(file, function, code)
    return next((rule for rule in _TABLES[table] if rule.matches(frame)), None)
