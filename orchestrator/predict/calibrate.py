"""What a measured control teaches about its siblings: candidates of the same match key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.predict.memory import RankMemory
from orchestrator.vocabulary import Stage

_ACTIVATIONS = (Stage.FORWARD, Stage.BACKWARD, Stage.REPLAY)
_STEP = (Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP)
_LEAST, _MOST = 0.5, 2.0
"""Between what the activations' scale may lie: beyond it, the prediction is of something else than was measured."""


@dataclass(frozen=True)
class Calibration:
    """What was learned from a control. The neutral one changes nothing."""

    base: int = 0
    """Bytes that are alive beside activations, beyond the prediction: libraries, buffers, allocator."""
    scale: float = 1.0
    """Activations over their prediction: above 1 where a rank's experts get more than the mean of tokens."""
    excess: int = 0
    """Bytes by which the activations' largest peak is beyond the scaled prediction."""
    step: int = 0
    """Bytes of an optimizer step beyond the prediction."""
    step_without_copies: bool = False
    """The measured peak leaves no room for the step's float32 copies, so this revision makes none at once."""
    control_peak: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expected:
    """A rank's largest peak as the control taught it, and between what it may lie. Bytes."""

    peak: int
    low: int
    high: int
    stage: Stage


def calibrate(control: RankMemory, *, peak: int | None, stages: Mapping[Stage, int] | None = None) -> Calibration:
    """Compare a control's prediction with its measurement.

    `peak` is its largest peak, of whichever stage; `stages` each stage's, where they were recorded. Without stages, the
    peak is taken to be of the stage that should have been the largest.
    """
    stages = stages or {}
    without = _step_peak(control) - control.state.avoidable
    crowded = peak is not None and _step_peak(control) > peak and Stage.OPTIMIZER_STEP not in stages
    notes = ("the measured peak leaves no room for the float32 copies of an optimizer step",) if crowded else ()
    if Stage.GRAD_SYNC in stages and Stage.FORWARD in stages:
        # Where the reduction begins inside backward, activations are alive with it, and it says nothing of the base.
        inside = control.steady[Stage.GRAD_SYNC] > control.after_step
        base = 0 if inside else stages[Stage.GRAD_SYNC] - _known(control, Stage.GRAD_SYNC)
        fixed = _fixed(control)
        scale = _clamped((stages[Stage.FORWARD] - fixed - base) / max(1, control.steady[Stage.FORWARD] - fixed))
        highest = max(stages[stage] for stage in _ACTIVATIONS if stage in stages)
        excess = highest - fixed - base - int(scale * (_active_peak(control) - fixed))
        step = stages[Stage.OPTIMIZER_STEP] - _step_peak(control) - base if Stage.OPTIMIZER_STEP in stages else 0
        return Calibration(base, scale, excess, step, crowded, peak, notes)
    if peak is None:
        return Calibration(notes=notes)
    step_peak = without if crowded else _step_peak(control)
    active = _active_peak(control)
    if active >= step_peak:
        fixed = _fixed(control)
        scale = _clamped((peak - fixed) / max(1, active - fixed))
        excess = peak - fixed - int(scale * (active - fixed))
        return Calibration(0, scale, excess, 0, crowded, peak, notes)
    return Calibration(0, 1.0, 0, peak - step_peak, crowded, peak, notes)


def expect(rank: RankMemory, calibration: Calibration) -> Expected:
    """A sibling's largest peak. Where a step's copies are in doubt, they widen the range and not the expectation."""
    fixed = _fixed(rank)
    active = fixed + calibration.base + calibration.excess + int(calibration.scale * (_active_peak(rank) - fixed))
    step = _step_peak(rank) + calibration.base + calibration.step
    doubt = rank.state.avoidable if calibration.step_without_copies else 0
    step -= doubt
    error = abs(active - fixed) // 50
    high_step = step + doubt
    if calibration.step_without_copies and calibration.control_peak is not None:
        high_step = min(high_step, calibration.control_peak)
    peak = max(active, step)
    return Expected(
        peak=peak,
        low=max(active - error, step),
        high=max(active + error, high_step, peak),
        stage=Stage.FORWARD if active >= step else Stage.OPTIMIZER_STEP,
    )


def _active_peak(rank: RankMemory) -> int:
    return max(peaks[stage] for peaks in (rank.first, rank.steady) for stage in _ACTIVATIONS if stage in peaks)


def _step_peak(rank: RankMemory) -> int:
    return max(peaks[stage] for peaks in (rank.first, rank.steady) for stage in _STEP if stage in peaks)


def _known(rank: RankMemory, stage: Stage) -> int:
    return max(peaks[stage] for peaks in (rank.first, rank.steady) if stage in peaks)


def _fixed(rank: RankMemory) -> int:
    return rank.fixed + rank.state.state


def _clamped(scale: float) -> float:
    return min(_MOST, max(_LEAST, scale))
