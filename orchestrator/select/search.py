"""A search over the candidates of one job, as it is handed to a driver. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from orchestrator.predict.read import read_job
from orchestrator.select.escalate import Decision, Result, escalate
from orchestrator.select.prospects import Asked, ControlMeasured, prospects_of
from orchestrator.vocabulary import PASS, Stage


@dataclass(frozen=True)
class Searched:
    """One candidate of a search."""

    trial: str
    name: str
    is_control: bool
    world_size: int
    config: dict[str, Any]
    """As a specification's."""
    effective: dict[str, Any] | None = None
    """What predictions read of the configuration that a recipe turned out to mean."""
    seconds: float | None = None
    """What a trial should take, by its prediction."""


@dataclass(frozen=True)
class Tried:
    """What came of a candidate's trial. Sizes are bytes."""

    label: str
    peak: int | None = None
    peak_scope: str | None = None
    step_ms: float | None = None
    stages: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True)
class Search:
    """Everything that a driver needs to decide by itself."""

    SCHEMA: ClassVar[int] = 1

    study: str
    candidates: list[Searched]
    target: int | None = None
    """Bytes of allocated memory that every rank may use; None asks only for a candidate that passes."""
    hours_left: float | None = None
    """GPU-hours that were left when the search was handed over; None: no limit."""
    known: dict[str, Tried] = field(default_factory=dict)
    """By trial: what earlier commands found."""
    schema: int = SCHEMA

    def named(self, trial: str) -> str | None:
        """The candidate's name; None where a trial is none of them."""
        return next((one.name for one in self.candidates if one.trial == trial), None)


def decide(search: Search, tried: Mapping[str, Tried], spent: float = 0.0) -> Decision:
    """The next candidate, by name, or the end of the search.

    `tried` has this search's trials beside `known`; `spent` are the GPU-hours that they took.

    Raises:
        CannotPredictError: a candidate's memory cannot be predicted.
    """
    found = {**search.known, **tried}
    control = next((one for one in search.candidates if one.is_control), None)
    taught = found.get(control.trial) if control is not None else None
    timed = next((one.seconds for one in (taught, *found.values()) if one and one.seconds is not None), None)
    asked = []
    for one in search.candidates:
        seconds = _on_gpus(one, one.seconds if timed is None else timed)
        asked.append(Asked(one.name, read_job(one.config, one.effective).job, one.is_control, seconds))
    prospects = prospects_of(asked, _measured(taught))
    results = {
        one.name: Result(found[one.trial].label, *_figures(found[one.trial]))
        for one in search.candidates
        if one.trial in found
    }
    left = None if search.hours_left is None else search.hours_left - spent
    return escalate(prospects, results, target=search.target, hours_left=left)


def gpu_hours(search: Search, tried: Mapping[str, Tried]) -> float:
    """What these trials took."""
    sizes: Sequence[tuple[Searched, Tried]] = [
        (one, tried[one.trial]) for one in search.candidates if one.trial in tried
    ]
    return sum((_on_gpus(one, result.seconds) or 0.0) * one.world_size / 3600 for one, result in sizes)


def _on_gpus(one: Searched, seconds: float | None) -> float | None:
    """A trial that uses no GPU takes no GPU-hours."""
    trainer = one.config.get("trainer")
    return seconds if isinstance(trainer, Mapping) and trainer.get("name") == "bridge" else None


def _measured(control: Tried | None) -> ControlMeasured | None:
    # One that ran out of memory has the peak that it reached, not the one that it needed: it teaches nothing.
    if control is None or control.peak is None or control.label != PASS:
        return None
    stages = {Stage(name): size for name, size in control.stages.items()}
    return ControlMeasured(control.peak, stages, control.step_ms)


def _figures(tried: Tried) -> tuple[int | None, str | None, float | None]:
    return tried.peak, tried.peak_scope, tried.step_ms
