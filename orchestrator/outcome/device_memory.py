"""The numbers in an out-of-memory message, and what they say about whose memory it was."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.vocabulary import Cause
from orchestrator.vocabulary.units import GIB

_UNITS = {
    "bytes": 1,
    "byte": 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
    "EiB": 2**60,
}
_SIZE = r"([\d.]+) ?(bytes|byte|B|[KMGTPE]iB)\b"

OTHER_PROCESS_BYTES = GIB
"""Less than this is a bare CUDA context of a neighbour (0.3 to 0.6 GiB), not somebody holding the memory."""
HIDDEN_SHARE = 0.25
"""Share of the capacity that neither the allocator nor the process list explains, from which on another process holds
it. Memory of our own outside the allocator (contexts, NCCL, cuBLAS workspaces, symmetric buffers) is below: up to a
tenth in the reports that were read."""
FRAGMENT_SHARE = 1 / 50
"""Unallocated share of the reserved memory below which the rest is what any caching allocator keeps: splinters of
segments and the small-block pool. Reports with 0.5 to 1.3 % of slack were plainly full devices."""


@dataclass(frozen=True)
class DeviceMemory:
    """The allocation that failed, in bytes; None where the message does not say."""

    requested: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    """By the framework's allocator, in live tensors."""
    reserved: int | None = None
    """Held by that allocator, live tensors included."""
    private_pools: int | None = None
    """The part of `allocated` in private pools, for example of CUDA graphs."""
    limit: int | None = None
    """A cap set for this process."""
    this_process: int | None = None
    """Held by this process in all, memory outside the allocator included."""
    other_processes: int | None = None
    """Held by others on the same device."""
    device: int | None = None

    @property
    def unallocated(self) -> int | None:
        """Reserved and not in use; None where either is not said."""
        if self.reserved is None or self.allocated is None:
            return None
        return max(0, self.reserved - self.allocated)


@lru_cache(maxsize=64)
def read_device_memory(message: str) -> DeviceMemory:
    """The numbers in an out-of-memory message of any torch release; all None where it has none."""
    capacity = _size(
        rf"total capac(?:i)?ty of {_SIZE}|{_SIZE} total capacity|free of {_SIZE}|Device limit *: {_SIZE}", message
    )
    free = _size(rf"of which {_SIZE} is free|{_SIZE} free\b|Free \(according to CUDA\) *: {_SIZE}", message)
    allocated = _size(
        rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated|Currently allocated *: {_SIZE}", message
    )
    unallocated = _size(rf"{_SIZE} is reserved by PyTorch but unallocated|{_SIZE} cached\b", message)
    reserved = _size(rf"{_SIZE} reserved in total", message)
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    ours, others = _processes(message, capacity, free, reserved)
    device = re.search(r"\b(?:GPU|NPU|XPU|device) (\d+)", message)
    return DeviceMemory(
        requested=_size(
            rf"[Tt]ried to allocate {_SIZE}|[Ff]ailed to CUDA (?:m|c)alloc(?: async)? {_SIZE}|Requested *: {_SIZE}",
            message,
        ),
        capacity=capacity,
        free=free,
        allocated=allocated,
        reserved=reserved,
        private_pools=_size(rf"{_SIZE} allocated in private pools", message),
        limit=_limit(message, capacity),
        this_process=ours,
        other_processes=others,
        device=int(device.group(1)) if device else None,
    )


def cause_of_full_device(memory: DeviceMemory) -> Cause:
    """`shared_gpu`, `fragmentation` or `device_oom`, by arithmetic alone.

    The advice about fragmentation that torch prints with every such error says nothing.
    """
    if _others_hold_it(memory):
        return Cause.SHARED_GPU
    slack = memory.unallocated
    if (
        slack is not None
        and memory.requested is not None
        and memory.reserved
        and slack >= memory.requested
        and slack >= FRAGMENT_SHARE * memory.reserved
    ):
        return Cause.FRAGMENTATION
    return Cause.DEVICE_OOM


def _others_hold_it(memory: DeviceMemory) -> bool:
    others = memory.other_processes
    if others is None or others < OTHER_PROCESS_BYTES:
        return False
    if memory.requested is None or memory.free is None:
        return True
    return memory.free < memory.requested <= memory.free + others


def _processes(
    message: str, capacity: int | None, free: int | None, reserved: int | None
) -> tuple[int | None, int | None]:
    """What this process and what others hold.

    Inside a container the process list shows ours under a foreign number, or leaves foreign processes out; what the
    list does not explain is found by subtraction.
    """
    ours = _size(rf"this process has {_SIZE} memory in use", message)
    listed = [_bytes(number, unit) for number, unit in re.findall(rf"Process \d+ has {_SIZE} memory in use", message)]
    if ours is not None and capacity is not None and ours > capacity:
        ours = None  # torch 2.0 to 2.2 printed an underflowed number in containers
    used = None if capacity is None or free is None else capacity - free
    if ours is not None:
        others = sum(listed) if used is None else max(sum(listed), used - ours)
        return ours, max(0, others)
    if not listed:
        if used is None or capacity is None or reserved is None:
            return None, None
        hidden = used - reserved
        return None, hidden if hidden >= HIDDEN_SHARE * capacity else None
    unlisted = None if used is None else used - sum(listed)
    if unlisted is not None and reserved is not None and unlisted >= 0.9 * reserved:
        return unlisted, sum(listed)
    candidates = [size for size in listed if reserved is None or size >= 0.98 * reserved]
    if not candidates:
        return None, sum(listed)
    ours = min(candidates)
    return ours, sum(listed) - ours


def _limit(message: str, capacity: int | None) -> int | None:
    """The cap set for this process; an unset one is printed as 16 EiB by the asynchronous allocator."""
    limit = _size(rf"{_SIZE} allowed|PyTorch limit \([^)]*\) *: {_SIZE}", message)
    return None if limit is not None and capacity is not None and limit > capacity else limit


def _size(pattern: str, message: str) -> int | None:
    match = re.search(pattern, message)
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return _bytes(number, unit)


def _bytes(number: str, unit: str) -> int:
    try:
        return round(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        return 0
