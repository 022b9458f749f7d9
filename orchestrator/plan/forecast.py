"""What planned trials are expected to need: memory and GPU-hours, before a GPU is used. Nothing is decided by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from orchestrator.plan.candidate import group, trainer_of
from orchestrator.predict.hours import Hours, trial_hours
from orchestrator.predict.job import Job
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.read import read_job
from orchestrator.predict.timing import H100, step_time
from orchestrator.predict.verdict import Range, range_of

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan, PlannedTrial


@dataclass(frozen=True)
class Forecast:
    """Of one trial."""

    memory: Range | None
    """Of the rank that needs most; None where a recipe alone knows the sizes."""
    hours: Hours | None
    """GPU-hours; None for a trainer that uses no GPU, or where only a recipe knows how many."""


def forecasts(plan: Plan) -> dict[str, Forecast]:
    """Of every trial that would run, by its id. Repeats of a request are predicted once."""
    found: dict[str, Forecast] = {}
    by_request: dict[int, Forecast] = {}
    for entry in plan.new:
        key = id(entry.request)
        if key not in by_request:
            by_request[key] = forecast(entry)
        found[entry.trial] = by_request[key]
    return found


def forecast(entry: PlannedTrial) -> Forecast:
    """Of one trial, from its request and what a recipe answered."""
    try:
        job = read_job(entry.request, entry.effective).job
        memory = range_of(job, predict_memory(job))
    except (CannotPredictError, ArithmeticError):  # sizes of zero, which no rule knows of
        return Forecast(None, _hours(entry.request, entry.world_size, None))
    return Forecast(memory, _hours(entry.request, entry.world_size, job))


def total_hours(found: Mapping[str, Forecast]) -> Hours | None:
    """GPU-hours of all of them together; None where none uses a GPU."""
    hours = [one.hours for one in found.values() if one.hours is not None]
    return reduce(add, hours) if hours else None


def _hours(request: Mapping[str, Any], ranks: int | None, job: Job | None) -> Hours | None:
    iterations = group(request, "training").get("train_iters")
    if trainer_of(request) != "bridge" or ranks is None or not isinstance(iterations, int):
        return None
    if job is None:
        return trial_hours(ranks, iterations, None)
    step = step_time(job, H100)
    return Hours(
        trial_hours(ranks, iterations, step.expected).expected,
        trial_hours(ranks, iterations, step.low).low,
        trial_hours(ranks, iterations, step.high).high,
    )
