"""Tracked memory: the live tensor bytes of this process, with a capacity.

What is counted: every storage on the CPU that an operation returned while the tracker was active, once however
many views it has, from the operation that made it until the storage is freed. What is not: scratch space inside
an operation's kernel, generator states (on the host in GPU training too), and copies that gloo makes for itself.
Checked with torch 2.13.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator.trial.meter import NOT_READ, Reading


class _StorageRef(weakref.ref):  # type: ignore[type-arg]  # a generic base cannot be subclassed with slots
    """A weak reference that knows what its storage was counted as."""

    __slots__ = ("key", "size")
    key: int
    size: int


class TrackedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's base class has no types
    """Counts live storage bytes while it is entered; one thread's operations, with their backward.

    Dispatch modes belong to a thread. Autograd runs the backward of CPU tensors on the thread that called it,
    nested backwards included, so one mode sees forward, backward, replay and the optimizer alike.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        """Count without a limit, or with one past which an allocation raises `torch.OutOfMemoryError`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._capacity = capacity_bytes
        self._live = 0
        self._peak = 0
        self._out_of_memory = 0
        self._allocations = 0
        self._failing: int | None = None
        self._counting = True
        self._known: dict[int, _StorageRef] = {}
        self._storage_resize: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Asked by newer releases of torch when a mode is defined. True, as in the base class, imports torch._dynamo
        # at the first operation, which takes a second and helps nobody here.
        return False

    # The meter that the stage recorder reads.

    def peak(self) -> tuple[int, int]:
        """Most live bytes since the last reset; nothing is reserved here, so nothing is read of that."""
        return self._peak, NOT_READ

    def current(self) -> tuple[int, int]:
        """Live bytes now."""
        return self._live, NOT_READ

    def reset(self) -> None:
        """Start a new peak from what is live now."""
        self._peak = self._live

    def capacity(self) -> int | None:
        """Bytes that may be live at once; None without a limit."""
        return self._capacity

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        """There is no cache that could be emptied and retried; out-of-memory errors raised so far."""
        return None, self._out_of_memory

    def edge(self) -> Reading:
        """End one window and start the next."""
        reading = Reading(self._peak, NOT_READ, self._live, NOT_READ)
        self._peak = self._live
        return reading

    def fail_allocation(self, number: int) -> None:
        """Let the `number`-th allocation from now on (from 1) fail as if it did not fit."""
        self._failing = self._allocations + number

    def spare(self) -> int | None:
        """Take `fail_allocation` back: how many allocations away the failing one still was, None without one."""
        failing, self._failing = self._failing, None
        return None if failing is None or failing <= self._allocations else failing - self._allocations

    @contextlib.contextmanager
    def not_counting(self) -> Iterator[None]:
        """Leave out what is allocated inside: copies that a library makes for itself."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def refuse(self, requested: int) -> torch.OutOfMemoryError:
        """The error for a request that does not fit, in torch's words and numbers (c10/cuda/CUDACachingAllocator.cpp).

        A process without a capacity has no room beyond what is live.
        """
        self._out_of_memory += 1
        capacity = self._live if self._capacity is None else self._capacity
        live, free = format_size(self._live), format_size(max(0, capacity - self._live))
        return torch.OutOfMemoryError(
            f"CPU (tracked) out of memory. Tried to allocate {format_size(requested)}. CPU 0 has a total capacity of "
            f"{format_size(capacity)} of which {free} is free. Process {os.getpid()} has {live} memory in use. "
            f"Of the allocated memory {live} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
            "unallocated."
        )

    # The mode.

    def __enter__(self) -> TrackedMemory:
        # Checkpoints that discard their output resize storages (Megatron Core, CheckpointWithoutOutput), which no
        # dispatch mode sees.
        resize = torch.UntypedStorage.resize_
        self._storage_resize = resize

        def tracked_resize(storage: torch.UntypedStorage, size: int) -> Any:
            self._check(size - storage.nbytes())
            result = resize(storage, size)
            self._settle(storage)
            return result

        torch.UntypedStorage.resize_ = tracked_resize  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._storage_resize  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        if not self._counting:
            return result
        if isinstance(result, torch.Tensor):
            self._see(result)
        elif isinstance(result, (tuple, list)):
            for item in result:
                if isinstance(item, torch.Tensor):
                    self._see(item)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            self._count(tensor.untyped_storage())

    def _count(self, storage: torch.UntypedStorage) -> None:
        known = self._known.get(storage._cdata)
        size = storage.nbytes()
        if known is None or known.size != size:
            self._check(size if known is None else size - known.size)
            self._settle(storage)

    def _settle(self, storage: torch.UntypedStorage) -> None:
        """Count a storage as what it is now, whatever it was counted as."""
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _StorageRef(storage, self._freed)
            known.key, known.size = key, 0
        grown = size - known.size
        known.size = size
        self._add(grown)

    def _check(self, requested: int) -> None:
        if requested <= 0:
            return
        self._allocations += 1
        if self._allocations == self._failing or (
            self._capacity is not None and self._live + requested > self._capacity
        ):
            raise self.refuse(requested)

    def _add(self, size: int) -> None:
        self._live += size
        if self._live > self._peak:
            self._peak = self._live

    def _freed(self, reference: _StorageRef) -> None:
        # Run by whichever thread dropped the last tensor; the interpreter's lock is held over each statement.
        self._live -= reference.size
        if self._known.get(reference.key) is reference:
            del self._known[reference.key]


def format_size(size: int) -> str:
    """Bytes as torch writes them in its out-of-memory message (format_size in CUDACachingAllocator.cpp)."""
    if size <= 1024:
        return f"{size} bytes"
    for unit, factor in (("KiB", 2**10), ("MiB", 2**20)):
        if size <= factor * 1024:
            return f"{size / factor:.2f} {unit}"
    return f"{size / 2**30:.2f} GiB"
