"""Where the stages begin and end: Megatron Core's own functions, wrapped.

Looked up where their callers look them up. Checked against Megatron Core 0.16.1 and 0.15.3.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from orchestrator.trial.mcore_cpu.standins import CHECKED, SeamGoneError
from orchestrator.trial.recorder import Recorder
from orchestrator.vocabulary import Stage

_MICROBATCH = "_orchestrator_microbatch"

_PIPELINE = {
    "recv_forward": Stage.FORWARD,
    "send_forward": Stage.FORWARD,
    "send_forward_recv_forward": Stage.FORWARD,
    "send_backward_recv_forward": Stage.FORWARD,
    "recv_backward": Stage.BACKWARD,
    "send_backward": Stage.BACKWARD,
    "send_backward_recv_backward": Stage.BACKWARD,
    "send_forward_recv_backward": Stage.BACKWARD,
    "send_forward_backward_recv_forward_backward": Stage.BACKWARD,
}
"""Where a pipeline stage waits for another, and allocates the buffer that it receives into: the stage that needs it."""


def install_seams(recorder: Recorder) -> None:
    """Mark forward, backward, replay, gradient synchronisation and the first optimizer state, from here on.

    Raises:
        SeamGoneError: a function is not where it was in the versions that were checked.
    """
    schedules = "megatron.core.pipeline_parallel.schedules"
    _replace(schedules, "forward_step", functools.partial(_forward, recorder))
    _replace(schedules, "backward_step", functools.partial(_backward, recorder))
    _replace("megatron.core.tensor_parallel.random", "_fork_rng", functools.partial(_replay, recorder))
    for name, stage in _PIPELINE.items():
        communicator = "megatron.core.pipeline_parallel.p2p_communication:P2PCommunicator"
        _replace(communicator, name, functools.partial(recorder.wrap, stage))
    for name in ("start_grad_sync", "finish_grad_sync"):
        buckets = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup"
        _replace(buckets, name, functools.partial(gradient_sync, recorder))
    _replace("torch.optim:AdamW", "_init_group", functools.partial(_first_state, recorder))


def gradient_sync(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in the stage `grad_sync`; what it calls of the same kind is part of the same visit."""

    @functools.wraps(function)
    def synchronise(*args: Any, **kwargs: Any) -> Any:
        if recorder.current is Stage.GRAD_SYNC:
            return function(*args, **kwargs)
        with recorder.stage(Stage.GRAD_SYNC):
            return function(*args, **kwargs)

    return synchronise


def _replace(owner: str, name: str, wrap: Callable[[Any], Any]) -> None:
    module, _, attribute = owner.partition(":")
    found: Any = sys.modules.get(module)
    if attribute:
        found = getattr(found, attribute, None)
    original = getattr(found, name, None)
    if original is None:
        raise SeamGoneError(
            f"{owner.replace(':', '.')}.{name} does not exist here, so its stage cannot be recorded; "
            f"this release was checked with Megatron Core {' and '.join(CHECKED)}"
        )
    setattr(found, name, wrap(original))


def _forward(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward_step(*args: Any, **kwargs: Any) -> Any:
        # The schedule without a pipeline passes it by keyword, the others too.
        number = kwargs.get("current_microbatch")
        if number is not None:
            recorder.microbatch(int(number))
        with recorder.stage(Stage.FORWARD):
            result = original(*args, **kwargs)
        for tensor in _tensors(result[0]):
            # Backward is given this very object, and no number.
            setattr(tensor, _MICROBATCH, number)
        return result

    return forward_step


def _backward(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward_step(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        for tensor in _tensors(output_tensor):
            number = getattr(tensor, _MICROBATCH, None)
            if number is not None:
                recorder.microbatch(int(number))
        with recorder.stage(Stage.BACKWARD):
            return original(input_tensor, output_tensor, *args, **kwargs)

    return backward_step


def _replay(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """`_fork_rng` is entered around exactly the recomputed forward; the backward of it comes after."""

    @contextlib.contextmanager
    def fork_rng() -> Iterator[None]:
        with recorder.stage(Stage.REPLAY), original():
            yield

    return fork_rng


def _first_state(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """torch's Adam makes a parameter's state in `_init_group` when it first steps."""

    @functools.wraps(original)
    def init_group(optimizer: torch.optim.Optimizer, group: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if all(parameter in optimizer.state for parameter in group["params"] if parameter.grad is not None):
            return original(optimizer, group, *args, **kwargs)
        with recorder.stage(Stage.OPTIMIZER_INIT):
            return original(optimizer, group, *args, **kwargs)

    return init_group


def _tensors(value: Any) -> list[torch.Tensor]:
    found = value if isinstance(value, (list, tuple)) else [value]
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]
