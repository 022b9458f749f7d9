"""Whether the optimizer's stages, which recompute does not touch, set the peaks of a match key."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.analysis.comparison import Group, Line
from orchestrator.analysis.rows import Row
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.read import read_job
from orchestrator.select.lever import ACTIVATION_STAGES, OPTIMIZER_STAGES, Verdict
from orchestrator.vocabulary import Stage
from orchestrator.vocabulary.units import format_bytes

OPTIMIZER_FLOOR = "optimizer-floor"
_MOST_NAMED = 3


@dataclass(frozen=True)
class Floor:
    """The lowest peak that an optimizer stage had with any candidate. Bytes."""

    size: int
    stage: Stage
    name: str
    bound: tuple[Line, ...]
    """The candidates whose own peak is in an optimizer stage."""
    passed: int
    """Candidates that passed with peaks by stage."""
    higher: tuple[Line, ...]
    """Of those, the ones that peak higher than the control, highest first."""
    control_peak: int | None
    activations: int | None
    """The lowest peak of forward and backward with any candidate."""


def floor_of(group: Group) -> Floor | None:
    """The floor, where most candidates peak in an optimizer stage; else None."""
    lines = [line for line in group.lines if line.passed and line.decided.stages_known and line.peak]
    optimizer = [
        (peak.allocated or 0, line.text, peak.stage)
        for line in lines
        if (peak := line.decided.peak_in(OPTIMIZER_STAGES)) and peak.stage
    ]
    bound = [line for line in lines if line.peak and line.peak.stage in OPTIMIZER_STAGES]
    if not optimizer or 2 * len(bound) <= len(lines):
        return None
    size, name, stage = min(optimizer)
    control = group.control
    reference = control.peak.allocated if control is not None and control.passed and control.peak else None
    higher = [line for line in bound if reference is not None and not line.is_control and _peak(line) > reference]
    activations = [peak.allocated for line in lines if (peak := line.decided.peak_in(ACTIVATION_STAGES))]
    return Floor(
        size=size,
        stage=stage,
        name=name,
        bound=tuple(bound),
        passed=len(lines),
        higher=tuple(sorted(higher, key=lambda line: (-_peak(line), line.text))),
        control_peak=reference,
        activations=min((size for size in activations if size is not None), default=None),
    )


def floor_verdict(group: Group) -> Verdict | None:
    """What a reader of a choice must know of the floor; None where recompute sets the peaks."""
    floor = floor_of(group)
    if floor is None:
        return None
    return Verdict(OPTIMIZER_FLOOR, f"{seen(floor)} {instead(group)}")


def seen(floor: Floor) -> str:
    """What was measured, with its numbers."""
    activations = (
        f", while forward and backward need {format_bytes(floor.activations)} at best" if floor.activations else ""
    )
    said = (
        f"Recompute is not the lever below {format_bytes(floor.size)}: no candidate's {floor.stage} took less, and "
        f"{len(floor.bound)} of {floor.passed} candidates peak there{activations}."
    )
    if not floor.higher:
        return said
    named = "; ".join(f"{line.text} {format_bytes(_peak(line))}" for line in floor.higher[:_MOST_NAMED])
    more = len(floor.higher) - _MOST_NAMED
    return (
        f"{said} Recomputing more can raise the peak: above the control's {format_bytes(floor.control_peak)} are "
        f"{named}{f' and {more} more' if more > 0 else ''}."
    )


def instead(group: Group) -> str:
    """What lowers an optimizer stage."""
    copies = any(_copies_moments(line.decided) for line in group.lines)
    newer = (
        "a Transformer Engine from 2.14 on, whose optimizer step does not copy BF16 moments to float32; "
        if copies
        else ""
    )
    moments = "" if copies else "BF16 moments; "
    return (
        f"What would help: {newer}{moments}the distributed optimizer over more data-parallel ranks; optimizer offload."
    )


def _copies_moments(row: Row) -> bool:
    """Whether moments are narrower than float32 already, and the optimizer's step copies them."""
    if row.effective is None:
        return False
    try:
        job = read_job(row.requested, {**row.effective, "software": row.software}).job
    except CannotPredictError:
        return False
    return job.numerics.copies_moments and job.numerics.moments_in_place is False


def _peak(line: Line) -> int:
    return (line.peak.allocated or 0) if line.peak else 0
