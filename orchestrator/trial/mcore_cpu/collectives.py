"""What this trainer asks of collectives that gloo does not do by itself.

Experts that are split over ranks (expert tensor parallelism with expert parallelism) gather different numbers of tokens
from each rank, which gloo refuses: pieces are filled up to the same length.

They take no memory of their own here, and have let go of their tensors when they say that they are done.

gloo works on copies of its own, which NCCL does not need: they are not counted. It runs a collective on a thread of its
own, which wakes the caller first and drops its references to the tensors then. In between, a tensor that nobody needs
any more still counts as live: by chance, and by as much as one activation. Waiting those microseconds makes peaks
repeat. Asynchronous collectives of several buckets at once (overlapped gradient reduction and parameter gather) keep
that chance. Checked with torch 2.13.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from orchestrator.trial.mcore_cpu.memory import TrackedMemory
from orchestrator.trial.mcore_cpu.standins import StandIn

_PATIENCE = 0.05
"""Seconds to wait at most."""

_COLLECTIVES = ("all_gather_into_tensor", "all_reduce", "all_to_all_single", "broadcast", "reduce_scatter_tensor")
_WHY = "gloo drops its references to the tensors a moment after a collective is done"

_WHY_UNEVEN = "gloo only exchanges pieces of the same size"


@functools.cache
def settle_collectives() -> None:
    """Let torch's collectives settle, once. Call it before importing Megatron Core, which keeps some by other names.

    Raises:
        SeamGoneError: torch.distributed lacks one of them.
    """
    for name in _COLLECTIVES:
        StandIn("torch.distributed", name, _settled, _WHY).install()
    StandIn("torch.distributed", "_coalescing_manager", _settled_manager, _WHY).install()
    for name, uneven in (("all_gather", _uneven_all_gather), ("reduce_scatter", _uneven_reduce_scatter)):
        StandIn("torch.distributed", name, uneven, _WHY_UNEVEN).install()


def leave_copies_out_of(memory: TrackedMemory) -> None:
    """Have the memory of this process not count what gloo copies for itself."""
    _Tracked.memory = memory


class _Tracked:
    memory: TrackedMemory | None = None
    """Of this process. Megatron Core is imported before there is one, where ranks are forked."""


def _not_counting() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if _Tracked.memory is None else _Tracked.memory.not_counting()


def _settled(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.distributed.distributed_c10d._world.pg_coalesce_state:
            # Only recorded now, and carried out when the block ends.
            return collective(*args, **kwargs)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        held = [_holders(tensor) for tensor in tensors]
        with _not_counting():
            work = collective(*args, **kwargs)
        if work is not None:
            return _SettledWork(work, tensors, held)
        _let_go(tensors, held)
        return None

    return call


def _settled_manager(manager: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(manager)
    @contextlib.contextmanager
    def coalescing_manager(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with _not_counting(), manager(*args, **kwargs) as works:
            yield works

    return coalescing_manager


def _uneven_all_gather(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def all_gather(outputs: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
        with _not_counting():
            longest = max(output.shape[0] for output in outputs)
            if async_op or all(output.shape[0] == longest for output in outputs):
                return collective(outputs, tensor, group=group, async_op=async_op)
            padded = tensor.new_zeros(longest, *tensor.shape[1:])
            padded[: tensor.shape[0]] = tensor
            pieces = [torch.empty_like(padded) for _ in outputs]
            collective(pieces, padded, group=group)
            for output, piece in zip(outputs, pieces, strict=True):
                output.copy_(piece[: output.shape[0]])
        return None

    return all_gather


def _uneven_reduce_scatter(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def reduce_scatter(output: torch.Tensor, inputs: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        with _not_counting():
            if args or set(kwargs) - {"group"} or len({piece.shape[0] for piece in inputs}) == 1:
                return collective(output, inputs, *args, **kwargs)
            group = kwargs.get("group")
            total = torch.cat(inputs)
            torch.distributed.all_reduce(total, group=group)
            own = torch.distributed.get_rank(group)
            output.copy_(torch.split(total, [piece.shape[0] for piece in inputs])[own])
        return None

    return reduce_scatter


class _SettledWork:
    """A `torch.distributed.Work` whose `wait` also waits for gloo's thread."""

    def __init__(self, work: Any, tensors: list[torch.Tensor], held: list[int]) -> None:
        self._work = work
        self._tensors = tensors
        self._held = held

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if self._work is None:
            return True
        result = self._work.wait(*args, **kwargs)
        tensors, self._tensors = self._tensors, []
        self._work = None
        _let_go(tensors, self._held)
        return result

    def is_completed(self) -> bool:
        return self._work is None or bool(self._work.is_completed())


def _holders(tensor: torch.Tensor) -> int:
    count: int = tensor._use_count()  # type: ignore[attr-defined]  # not in torch's stubs
    return count


def _let_go(tensors: list[torch.Tensor], held: list[int]) -> None:
    """Wait until no tensor has more holders than it had, or somebody else must be holding one for a reason."""
    deadline = time.perf_counter() + _PATIENCE
    for tensor, before in zip(tensors, held, strict=True):
        while _holders(tensor) > before and time.perf_counter() < deadline:
            time.sleep(0)
