"""What planned trials are expected to need: memory and GPU-hours, before a GPU is used. Nothing is decided by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from orchestrator.plan.candidate import group, trainer_of
from orchestrator.predict.calibrate import Calibration
from orchestrator.predict.hours import Hours, trial_hours
from orchestrator.predict.job import SELECTIVE, Job, Recompute
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.problem import CannotPredictError, CannotRunError
from orchestrator.predict.read import read_job
from orchestrator.predict.timing import H100, StepTime, speed_from_control, step_time
from orchestrator.predict.verdict import Answer, Range, range_of

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan, PlannedTrial

CALIBRATED = "peaks are as the measured control of the same job taught them"


@dataclass(frozen=True)
class Forecast:
    """Of one trial."""

    memory: Range | None
    """Of the rank that needs most; None where it cannot be predicted."""
    hours: Hours | None
    """GPU-hours; None for a trainer that uses no GPU, or where only a recipe knows how many."""
    step: StepTime | None = None
    """Of a trial that uses GPUs; None where its operations are not known."""
    global_batch: int | None = None
    """Sequences of a step."""
    too_much: str | None = None
    """The limit or the device that the low end of the range is above, as a person reads it."""
    notes: tuple[str, ...] = ()
    """What was assumed, or taught by an earlier run."""
    problem: str | None = None
    """Why there is no memory."""
    cannot_run: bool = False
    """Whether that is because nothing could run it, as far as the recipe is known here."""


@dataclass(frozen=True)
class Earlier:
    """What runs of the same job teach a trial's forecast; nothing where there are none."""

    effective: Mapping[str, Any] | None = None
    calibrate: Callable[[Job], Calibration | None] = lambda job: None
    control_seconds: float | None = None
    """Of a step of its control."""


def forecasts(plan: Plan, earlier: Sequence[Earlier] = ()) -> dict[str, Forecast]:
    """Of every trial that would run, by its id. Repeats of a request are predicted once.

    `earlier` is of each of `plan.new`, in that order; nothing where no database was asked.
    """
    found: dict[str, Forecast] = {}
    by_request: dict[int, Forecast] = {}
    for index, entry in enumerate(plan.new):
        key = id(entry.request)
        if key not in by_request:
            by_request[key] = forecast(entry, earlier[index] if earlier else None)
        found[entry.trial] = by_request[key]
    return found


def forecast(entry: PlannedTrial, earlier: Earlier | None = None) -> Forecast:
    """Of one trial, from its request, what a recipe answered, and what its measured control taught."""
    earlier = earlier or Earlier()
    finished = earlier.effective if earlier.effective is not None else entry.effective
    try:
        reading = read_job(entry.request, finished)
        job = reading.job
        calibration = earlier.calibrate(job)
        memory = range_of(job, predict_memory(job), calibration)
        step = _step(job, earlier.control_seconds) if trainer_of(entry.request) == "bridge" else None
    except ArithmeticError:  # sizes of zero, which no rule knows of
        return Forecast(None, _hours(entry.request, entry.world_size, None))
    except CannotRunError as error:
        return Forecast(None, None, problem=str(error), cannot_run=True)
    except CannotPredictError as error:
        return Forecast(None, _hours(entry.request, entry.world_size, None), problem=str(error))
    taught = () if calibration is None else (*calibration.notes, CALIBRATED)
    return Forecast(
        memory,
        _hours(entry.request, entry.world_size, step),
        step,
        job.batch.global_batch,
        too_much(entry.request, memory),
        (*reading.assumed, *taught),
    )


def too_much(request: Mapping[str, Any], memory: Range) -> str | None:
    """What even the low end of a range is above: the trainer's limit, the device where its name says its size, or the
    study's target."""
    if (limit := _above(memory, request, "trainer", "memory_limit_gb")) is not None:
        return limit
    named = str(group(request, "cluster").get("gpu_type") or "") if trainer_of(request) == "bridge" else ""
    size = re.search(r"(?<!\d)(\d{2,3}) ?GB", named)
    # A card's name counts in units of 1024; nothing is called too much that might not be.
    if size and memory.answer_device(int(size[1]) * 2**30) is Answer.WILL_NOT_FIT:
        return named
    return _above(memory, request, "study", "target_gb")


def _above(memory: Range, request: Mapping[str, Any], name: str, key: str) -> str | None:
    """The setting, where it is a size in GB that even the low end is above."""
    size = group(request, name).get(key)
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        return None
    return f"{name}.{key}={size:g}" if memory.answer(int(size * 1e9)) is Answer.WILL_NOT_FIT else None


def total_hours(found: Mapping[str, Forecast]) -> Hours | None:
    """GPU-hours of all of them together; None where none uses a GPU."""
    hours = [one.hours for one in found.values() if one.hours is not None]
    return reduce(add, hours) if hours else None


def _step(job: Job, control_seconds: float | None) -> StepTime:
    if control_seconds is None:
        return step_time(job, H100)
    control = replace(job, recompute=Recompute(SELECTIVE))
    return step_time(job, speed_from_control(control, control_seconds), control_seconds)


def _hours(request: Mapping[str, Any], ranks: int | None, step: StepTime | None) -> Hours | None:
    iterations = group(request, "training").get("train_iters")
    if trainer_of(request) != "bridge" or ranks is None or not isinstance(iterations, int):
        return None
    if step is None:
        return trial_hours(ranks, iterations, None)
    return Hours(
        trial_hours(ranks, iterations, step.expected).expected,
        trial_hours(ranks, iterations, step.low).low,
        trial_hours(ranks, iterations, step.high).high,
    )
