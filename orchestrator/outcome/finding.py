"""What one rank's end says."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.outcome.device_memory import DeviceMemory
from orchestrator.outcome.rule import Weight
from orchestrator.vocabulary import Cause, Stage


@dataclass(frozen=True)
class Finding:
    """A rank that did not end well. `at` is unix seconds by its host's clock."""

    rank: int
    host: str
    at: float
    cause: Cause
    weight: Weight
    stage: Stage
    iteration: int | None
    rules: tuple[str, ...]
    line: str
    memory: DeviceMemory | None = None
    exception: bool = False
    """It raised: a process that could still speak."""
