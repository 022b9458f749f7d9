"""What could not be collected."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A file or folder that could not be collected, and why."""

    path: str
    message: str
