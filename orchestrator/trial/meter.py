"""Where a rank's memory figures come from."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

NOT_READ = -1
"""A size that nothing measures, as a beacon stores it."""


class Reading(NamedTuple):
    """Bytes at a stage's edge: the maximum since the last reset, and what is held now."""

    peak_allocated: int
    peak_reserved: int
    allocated: int
    reserved: int


class NoCountersError(RuntimeError):
    """This torch lacks the allocator's counters that are read here."""


class Meter(Protocol):
    """Allocated and reserved bytes of this rank's device. No method may synchronise with the device.

    Whoever subclasses gets `edge` from the four methods that it is made of.
    """

    def peak(self) -> tuple[int, int]:
        """The largest (allocated, reserved) since the last reset."""
        ...

    def reset(self) -> None:
        """Start the next window: its peak begins at what is held now."""
        ...

    def current(self) -> tuple[int, int]:
        """(allocated, reserved) now."""
        ...

    def capacity(self) -> int | None:
        """Bytes that the rank may use; None where nothing limits it."""
        ...

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        """Allocations that needed a flush of the cache first, and those that failed; None where not counted."""
        ...

    def edge(self) -> tuple[int, int, int, int]:
        """End one window and start the next: `peak`, `current` and `reset` in one call. The recorder's hot path.

        The items are those of a `Reading`, which is not made here: it would take longer than reading some meters.
        """
        reading = Reading(*self.peak(), *self.current())
        self.reset()
        return reading


class NullMeter(Meter):
    """Reads nothing: for the time before a trainer has a device."""

    _READING = Reading(NOT_READ, NOT_READ, NOT_READ, NOT_READ)

    def peak(self) -> tuple[int, int]:
        return NOT_READ, NOT_READ

    def reset(self) -> None:
        pass

    def current(self) -> tuple[int, int]:
        return NOT_READ, NOT_READ

    def capacity(self) -> int | None:
        return None

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        return None, None

    def edge(self) -> tuple[int, int, int, int]:
        return self._READING


class CudaMeter(Meter):
    """The caching allocator's own counters, for one device.

    `torch.cuda.memory_stats` flattens and sorts some hundred counters at each call, and `torch.cuda.memory_allocated`
    goes through it. What both start from is one call that returns the counters as a nested dict, without touching
    the device: `torch._C._cuda_memoryStats`, used here directly (torch/cuda/memory.py, seen in 2.6 to 2.13).
    """

    def __init__(self, device: int | None = None) -> None:
        """Meter `device`, or the current one. Torch must have been built with CUDA.

        Raises:
            NoCountersError: this torch lacks the counters that are read here.
        """
        import torch

        self._device = torch.cuda.current_device() if device is None else device
        missing = [name for name in ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats") if not hasattr(torch._C, name)]
        if missing:
            raise NoCountersError(
                f"torch {torch.__version__} has no torch._C.{missing[0]}: memory is measured through it; "
                "use torch 2.6 to 2.13 built with CUDA"
            )
        self._stats: Any = torch._C._cuda_memoryStats
        self._reset: Any = torch._C._cuda_resetPeakMemoryStats
        # This creates the context, if the trainer has not: so its cost is in no stage's first edge.
        self._properties: Any = torch.cuda.get_device_properties(self._device)
        self._fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)

    def peak(self) -> tuple[int, int]:
        stats = self._stats(self._device)
        return stats["allocated_bytes"]["all"]["peak"], stats["reserved_bytes"]["all"]["peak"]

    def reset(self) -> None:
        self._reset(self._device)

    def current(self) -> tuple[int, int]:
        stats = self._stats(self._device)
        return stats["allocated_bytes"]["all"]["current"], stats["reserved_bytes"]["all"]["current"]

    def capacity(self) -> int | None:
        """The device's memory, times the share that `set_per_process_memory_fraction` left to this process."""
        total = int(self._properties.total_memory)
        return total if self._fraction is None else int(total * self._fraction(self._device))

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        stats = self._stats(self._device)
        return stats["num_alloc_retries"], stats["num_ooms"]

    def edge(self) -> tuple[int, int, int, int]:
        stats = self._stats(self._device)
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]
        peak, held = allocated["peak"], allocated["current"]
        peak_reserved, held_reserved = reserved["peak"], reserved["current"]
        if peak != held or peak_reserved != held_reserved:
            self._reset(self._device)  # otherwise the next window's peak begins at what is held now as it is
        return peak, peak_reserved, held, held_reserved
