"""Sizes in GB (1e9 bytes) that a user gives: what is none is refused where it enters."""

from __future__ import annotations

import argparse
import math
import re

from orchestrator.vocabulary.units import GB

MOST_GB = 1e9
"""An exabyte: no job has more, and its bytes fit in 64 bits."""

_POWERS = {"m": 2, "g": 3, "t": 4}


def problem_of_size(size: float, *, zero: bool = False) -> str | None:
    """Why a number of GB is no size, or None where it is one."""
    if not math.isfinite(size) or size < 0 or (size == 0 and not zero):
        return f"{size:g} is no size in GB: give a number {'of zero or more' if zero else 'above zero'}"
    if size > MOST_GB:
        return f"{size:g} GB is more than {MOST_GB:g} GB: give GB (1e9 bytes), not bytes"
    return None


def target_gb(text: str) -> float:
    """A flag's number of GB, above zero.

    Raises:
        ArgumentTypeError: it is none; argparse names the flag.
    """
    return _flag(text, zero=False)


def headroom_gb(text: str) -> float:
    """A flag's number of GB, zero or more.

    Raises:
        ArgumentTypeError: it is none; argparse names the flag.
    """
    return _flag(text, zero=True)


def _flag(text: str, *, zero: bool) -> float:
    try:
        size = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GB{_without_unit(text)}") from None
    problem = problem_of_size(size, zero=zero)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return size


def _without_unit(text: str) -> str:
    """What a size with a unit is in GB."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(GB|GiB|MB|MiB|TB|TiB)", text.strip(), re.IGNORECASE)
    if found is None:
        return ""
    number, unit = float(found[1]), found[2].lower()
    size = number * (1024 ** _POWERS[unit[0]] if "i" in unit else 1000 ** _POWERS[unit[0]])
    return f" (1e9 bytes) without a unit: {text} is {size / GB:.6g}"
