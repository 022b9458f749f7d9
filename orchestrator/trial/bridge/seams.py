"""Where Megatron Bridge and Megatron Core are marked, one line a seam.

Each seam is looked up when training starts, in the order in which its places are listed: a revision has one of them.
A seam of which no place is left is an error that names it, never a gap in the record. Checked against Megatron Bridge
0.3.1 with Megatron Core 0.16.1 by running, and against Bridge 0.7.0 dev with Core 0.20 dev by reading their sources.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.trial.recorder import Recorder
from orchestrator.trial.visit import Visit
from orchestrator.vocabulary import Stage

TRAINING = "megatron.bridge.training"
CORE = "megatron.core"
SCHEDULES = f"{CORE}.pipeline_parallel.schedules"
BUCKETS = f"{CORE}.distributed.param_and_grad_buffer"
_REPLAY = Stage.REPLAY.code


class MissingSeamError(ImportError):
    """This revision of Megatron Bridge or Megatron Core has none of the places that a stage is marked at."""


@dataclass(frozen=True)
class Place:
    """One function or method: a module and a dotted name in it, looked up there at each call (or imported there)."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Seam:
    """A stage and the places it is marked at. `required` seams must be there; others only where the feature is."""

    stage: Stage
    places: tuple[Place, ...]
    required: bool = True
    every: bool = False
    """Mark every place that is there, not just the first."""
    outermost: bool = False
    """Only the outermost call counts: an optimizer of optimizers steps each of its parts."""


SEAMS = (
    Seam(Stage.DISTRIBUTED_INIT, (Place(f"{TRAINING}.setup", "initialize_megatron"),)),
    Seam(
        Stage.MODEL_BUILD,
        (
            Place(f"{TRAINING}.setup", "_build_distributed_model"),
            Place("megatron.bridge.models.model_provider", "ModelProviderMixin.provide_distributed_model"),
        ),
    ),
    Seam(Stage.OPTIMIZER_BUILD, (Place(f"{TRAINING}.setup", "setup_optimizer"),)),
    Seam(
        Stage.CHECKPOINT_LOAD,
        (Place(f"{TRAINING}.setup", "load_checkpoint"), Place(f"{TRAINING}.checkpointing", "load_checkpoint")),
    ),
    Seam(Stage.CHECKPOINT_LOAD, (Place(f"{TRAINING}.setup", "_load_checkpoint_from_path"),)),
    Seam(Stage.DATA_BUILD, (Place(f"{TRAINING}.setup", "setup_data_iterators"),)),
    Seam(Stage.BACKWARD, (Place(SCHEDULES, "backward_step"),)),
    Seam(Stage.BACKWARD, (Place(SCHEDULES, "backward_step_multimodule"),), required=False),
    Seam(Stage.GRAD_SYNC, (Place(f"{TRAINING}.setup", "finalize_model_grads"),), outermost=True),
    Seam(Stage.GRAD_SYNC, (Place(BUCKETS, "_ParamAndGradBucketGroup.start_grad_sync"),), outermost=True),
    Seam(Stage.GRAD_SYNC, (Place(BUCKETS, "_ParamAndGradBucketGroup.finish_grad_sync"),), outermost=True),
    Seam(Stage.OPTIMIZER_STEP, (Place(f"{CORE}.optimizer.optimizer", "ChainedOptimizer.step"),), outermost=True),
    Seam(Stage.OPTIMIZER_STEP, (Place(f"{CORE}.optimizer.optimizer", "MixedPrecisionOptimizer.step"),), outermost=True),
    Seam(Stage.OPTIMIZER_STEP, (Place(f"{CORE}.optimizer.optimizer", "FP32Optimizer.step"),), outermost=True),
    Seam(
        Stage.OPTIMIZER_INIT,
        (
            Place("transformer_engine.pytorch.optimizers", "FusedAdam._initialize_state"),
            Place("transformer_engine.pytorch.optimizers", "FusedAdam.initialize_state"),
            Place("torch.optim.adam", "Adam._init_group"),
        ),
        every=True,
        outermost=True,
    ),
    Seam(Stage.EVALUATE, (Place(f"{TRAINING}.eval", "evaluate"),)),
    Seam(Stage.CHECKPOINT_SAVE, (Place(f"{TRAINING}.train", "save_checkpoint_and_time"),)),
    Seam(
        Stage.CHECKPOINT_SAVE,
        (Place(f"{TRAINING}.pretrain", "save_checkpoint"), Place(f"{TRAINING}.checkpointing", "save_checkpoint")),
    ),
    Seam(
        Stage.GRAPH_CAPTURE,
        (Place(f"{CORE}.transformer.cuda_graphs", "TECudaGraphHelper.create_cudagraphs"),),
    ),
    Seam(Stage.TEARDOWN, (Place(f"{TRAINING}.pretrain", "_finish_train"),)),
    Seam(Stage.TEARDOWN, (Place(f"{TRAINING}.pretrain", "_maybe_destroy_process_group"),)),
)

SPECIAL = (
    Seam(Stage.FORWARD, (Place(SCHEDULES, "forward_step"),)),
    Seam(Stage.REPLAY, (Place(f"{CORE}.tensor_parallel.random", "_fork_rng"),)),
    Seam(Stage.REPLAY, (Place("transformer_engine.pytorch.distributed", "activation_recompute_forward"),)),
    Seam(Stage.GRAPH_CAPTURE, (Place(f"{CORE}.full_cuda_graph", "FullCudaGraphWrapper.__call__"),)),
    Seam(Stage.GRAPH_CAPTURE, (Place(f"{CORE}.transformer.cuda_graphs", "_CudagraphGlobalRecord.create_cudagraphs"),)),
)
"""Marked by functions of their own, below."""


def install(recorder: Recorder, revision: str) -> None:
    """Mark every seam. Call it after Bridge was imported and before `pretrain`, which captures some of them early.

    Raises:
        MissingSeamError: names the first seam that `revision` lacks.
    """
    for seam in SEAMS:
        for place in _there(seam, revision):
            _replace(place, functools.partial(_marked, recorder, seam))
    forward, replay, replay_te, full_graph, local_graphs = (_there(seam, revision) for seam in SPECIAL)
    _replace(forward[0], functools.partial(_forward, recorder))
    _replace(replay[0], functools.partial(_replay, recorder))
    _replace_te_recompute(replay_te[0], recorder)
    _replace(full_graph[0], functools.partial(_full_graph, recorder))
    _replace(local_graphs[0], functools.partial(_local_graphs, recorder))


def _there(seam: Seam, revision: str) -> list[Place]:
    found = [place for place in seam.places if _owner(place) is not None]
    if not found and seam.required:
        raise MissingSeamError(
            f"{revision} has none of the places that the stage `{seam.stage}` is marked at "
            f"({', '.join(map(str, seam.places))}). This release was checked against Megatron Bridge 0.3.1 and 0.7.0 "
            "dev; use one of those, or a release of this tool that knows yours"
        )
    return found if seam.every else found[:1]


def _owner(place: Place) -> tuple[Any, str] | None:
    """The module or class that holds the place's function, and its attribute name there."""
    try:
        importlib.import_module(place.module)
    except ImportError:
        return None
    # a function can shadow the submodule of its name (core.distributed.finalize_model_grads), sys.modules is not fooled
    owner: Any = sys.modules[place.module]
    *path, name = place.name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    return (owner, name) if owner is not None and hasattr(owner, name) else None


def _replace(place: Place, mark: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    found = _owner(place)
    assert found is not None
    owner, name = found
    setattr(owner, name, mark(getattr(owner, name)))


def _marked(recorder: Recorder, seam: Seam, function: Callable[..., Any]) -> Callable[..., Any]:
    if not seam.outermost:
        return recorder.wrap(seam.stage, function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if recorder.current is seam.stage:
            return function(*args, **kwargs)
        with recorder.stage(seam.stage):
            return function(*args, **kwargs)

    return wrapped


def _forward(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """`forward_step` knows its microbatch; without pipelining the first one comes without a number."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        recorder.microbatch(kwargs.get("current_microbatch") or 0)
        with recorder.stage(Stage.FORWARD):
            return function(*args, **kwargs)

    return wrapped


def _replay(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """`_fork_rng` is a context manager that Megatron Core enters around a recomputed forward, and nowhere else."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return _Around(recorder, function(*args, **kwargs))

    return wrapped


class _Around(Visit):
    """Another context manager, entered as a replay: nested ones are one replay. The most frequent of all edges."""

    __slots__ = ("_inner",)

    def __init__(self, recorder: Recorder, inner: Any) -> None:
        self._recorder = recorder
        self._inner = inner

    def __enter__(self) -> Any:
        recorder = self._recorder
        self._depth = len(recorder.codes)
        if recorder.codes[-1] != _REPLAY:
            recorder.enter(Stage.REPLAY)
        return self._inner.__enter__()

    def __exit__(self, *exception: Any) -> Any:
        try:
            return self._inner.__exit__(*exception)
        finally:
            super().__exit__(*exception)


def _replace_te_recompute(place: Place, recorder: Recorder) -> None:
    """Transformer Engine's own checkpoints (FP8, FP4) replay inside `activation_recompute_forward`.

    It is entered in the original forward too, with `recompute_phase=False`.
    """
    found = _owner(place)
    assert found is not None
    kind = getattr(*found)
    enter, leave = kind.__enter__, kind.__exit__
    visits: list[Any] = []

    def entered(self: Any) -> Any:
        replaying = bool(getattr(self, "recompute_phase", False)) and recorder.current is not Stage.REPLAY
        visit = recorder.stage(Stage.REPLAY) if replaying else None
        if visit is not None:
            visit.__enter__()
        visits.append(visit)
        return enter(self)

    def left(self: Any, *exception: Any) -> Any:
        try:
            return leave(self, *exception)
        finally:
            visit = visits.pop()
            if visit is not None:
                visit.__exit__(*exception)

    kind.__enter__, kind.__exit__ = functools.wraps(enter)(entered), functools.wraps(leave)(left)


def _full_graph(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """A full-iteration graph is captured by the call that follows its warm-up steps; later calls replay it."""

    @functools.wraps(function)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        phase = "validation" if kwargs.get("forward_only", False) else "training"
        if type(self).curr_iteration[phase] != self.cuda_graph_warmup_steps:
            return function(self, *args, **kwargs)
        with recorder.stage(Stage.GRAPH_CAPTURE):
            return function(self, *args, **kwargs)

    return wrapped


def _local_graphs(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """Called after every schedule; captures once, when the first step has recorded what to capture."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        record = getattr(function, "__self__", None)
        if record is None or record.cudagraph_created or not record.cudagraph_record:
            return function(*args, **kwargs)
        with recorder.stage(Stage.GRAPH_CAPTURE):
            return function(*args, **kwargs)

    return wrapped
