"""The outcome that a person reads, derived from a stage and a cause."""

from __future__ import annotations

from orchestrator.vocabulary.causes import OOM_CAUSES, Cause, Consequence, consequence_of
from orchestrator.vocabulary.stages import SETUP_STAGES, Stage

PASS = "pass"
REJECTED = "rejected"

_OOM_LABELS = {
    Stage.GRAPH_CAPTURE: "OOM-graph-capture",
    Stage.FORWARD: "OOM-fwd",
    Stage.BACKWARD: "OOM-bwd",
    Stage.REPLAY: "OOM-bwd",
    Stage.GRAD_SYNC: "OOM-grad-sync",
    Stage.OPTIMIZER_INIT: "OOM-optimizer",
    Stage.OPTIMIZER_STEP: "OOM-optimizer",
    Stage.EVALUATE: "OOM-eval",
    Stage.CHECKPOINT_LOAD: "OOM-checkpoint",
    Stage.CHECKPOINT_SAVE: "OOM-checkpoint",
}


def label_of(stage: Stage, cause: Cause) -> str:
    """The label of a trial that stopped in `stage` because of `cause`.

    Raises:
        ValueError: for `Cause.NONE`: only the rules of a pass decide whether nothing was wrong.
    """
    if cause is Cause.NONE:
        raise ValueError("a trial without a cause has no label of its own: see outcome.passed")
    if cause not in OOM_CAUSES:
        return f"failed:{cause}"
    if stage in SETUP_STAGES:
        return "OOM-setup"
    return _OOM_LABELS.get(stage, "OOM-unknown")


def is_result(label: str) -> bool:
    """Whether a trial with this label has its answer and is not run again."""
    if label == PASS or label.startswith("OOM-"):
        return True
    if not label.startswith("failed:"):
        return False
    name = label.removeprefix("failed:")
    return name in _CAUSE_NAMES and consequence_of(Cause(name)) is Consequence.RESULT


_CAUSE_NAMES = frozenset(cause.value for cause in Cause) - {Cause.NONE.value}
