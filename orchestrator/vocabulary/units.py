"""Bytes as people read them. GB is 1e9 bytes and GiB is 2**30, and every number keeps its unit."""

from __future__ import annotations

GB = 10**9
GIB = 2**30
MB = 10**6


def in_gb(size: int | float) -> float:
    """Bytes to GB (1e9)."""
    return size / GB


def format_bytes(size: int | None) -> str:
    """Bytes with the largest decimal unit that leaves at least one whole; absent stays absent."""
    if size is None:
        return "-"
    magnitude = float(abs(size))
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if magnitude >= factor:
            return f"{size / factor:.3f} {unit}"
    return f"{size} B"
