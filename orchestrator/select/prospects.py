"""Candidates as a search sees them: predicted, and taught by the control once it has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.predict.calibrate import Calibration, calibrate, expect
from orchestrator.predict.job import FULL, UNIFORM, Job, Recompute
from orchestrator.predict.memory import Prediction, predict_memory
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.timing import H100, speed_from_control, step_time
from orchestrator.predict.verdict import range_of
from orchestrator.predict.walk import active_labels
from orchestrator.select.escalate import Prospect
from orchestrator.vocabulary import Stage


@dataclass(frozen=True)
class Asked:
    """One candidate of a search."""

    name: str
    job: Job
    is_control: bool = False
    trial_seconds: float | None = None
    """How long a trial of it should take, start-up included; None: not known."""


@dataclass(frozen=True)
class ControlMeasured:
    """What the control's trial measured. Sizes are bytes."""

    peak: int | None = None
    stages: Mapping[Stage, int] = field(default_factory=dict)
    step_ms: float | None = None


def prospects_of(asked: Sequence[Asked], measured: ControlMeasured | None = None) -> tuple[Prospect, ...]:
    """Every candidate's prospect, in the order asked.

    Raises:
        CannotPredictError: a candidate's layers do not divide over its pipeline, or it moves memory to the host.
    """
    predictions = {one.name: _predict(one) for one in asked}
    control = next((one for one in asked if one.is_control), None)
    calibration = _calibration(control, predictions, measured)
    reference = predictions[control.name].hottest.kept if control is not None else None
    return tuple(_prospect(one, predictions[one.name], control, calibration, reference, measured) for one in asked)


def _predict(asked: Asked) -> Prediction:
    try:
        return predict_memory(asked.job)
    except CannotPredictError as error:
        raise CannotPredictError(f"{asked.name}: {error}") from error


def _calibration(
    control: Asked | None, predictions: Mapping[str, Prediction], measured: ControlMeasured | None
) -> Calibration | None:
    if control is None or measured is None or measured.peak is None:
        return None
    return calibrate(predictions[control.name].hottest, peak=measured.peak, stages=measured.stages)


def _prospect(
    asked: Asked,
    prediction: Prediction,
    control: Asked | None,
    calibration: Calibration | None,
    reference: int | None,
    measured: ControlMeasured | None,
) -> Prospect:
    job = asked.job
    if calibration is not None:
        expected = expect(prediction.hottest, calibration)
        peak, low, high = expected.peak, expected.low, expected.high
    else:
        spread = range_of(job, prediction)
        peak, low, high = spread.expected, spread.low, spread.high
    speed = H100
    seconds = None
    if control is not None and measured is not None and measured.step_ms is not None:
        seconds = measured.step_ms / 1000
        speed = speed_from_control(control.job, seconds)
    base = step_time(control.job, speed, seconds).expected if control is not None else 0.0
    replay = step_time(job, speed, seconds).expected - base
    hours = (asked.trial_seconds or 0.0) * job.layout.world / 3600
    saving = 0 if reference is None else reference - prediction.hottest.kept
    labels = active_labels(job.recompute)
    return Prospect(
        asked.name,
        asked.is_control,
        peak,
        low,
        high,
        saving,
        max(0.0, replay),
        hours,
        labels,
        _whole_layers(job.recompute),
    )


def _whole_layers(recompute: Recompute) -> bool:
    """Whether every layer is checkpointed: `uniform` groups all of them, `block` only the first ones."""
    return recompute.granularity == FULL and recompute.method == UNIFORM
