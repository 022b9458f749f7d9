"""How far a number moves by itself: the band inside which a delta says nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BASIS_REPEATS = "repeats"
BASIS_WINDOW = "window"
"""One run only: the scatter of its own iterations stands in for what differs between runs."""
COVERAGE = 2.0
"""Standard errors of the median's spread that the band takes in (about 95 % where runs scatter normally)."""


@dataclass(frozen=True)
class NoiseBand:
    """Half-width of the band around a delta, as a fraction of the control, and where it comes from."""

    half_width: float
    basis: str
    runs: int
    own: float
    """From the candidate's repeats, or the scatter of its one window."""
    control: float
    """From the control's window, where the repeats do not show it already."""
    drift: float | None
    """How far the job's two controls lay apart, or all known passes of the control where the job had only one."""
    garbage: float = 0.0
    """By how much garbage collection took more of the one than of the other: a part of the delta, of either sign."""
    passes: int = 0
    """Passes of the control, in any job, that `drift` is over where the job had only one; 0 where it is the job's."""

    def holds(self, delta: float) -> bool:
        """Whether a delta is no larger than the band."""
        return abs(delta) <= self.half_width


def spread_of_median(values: Sequence[float]) -> float:
    """`COVERAGE` standard errors of repeated values; 0 for one value."""
    if len(values) < 2:
        return 0.0
    return COVERAGE * statistics.stdev(values) / math.sqrt(len(values))


def drift(controls: Sequence[float]) -> float | None:
    """Distance of a job's first and last control over their mean; None where there are not two."""
    if len(controls) < 2 or not (mean := statistics.fmean(controls)):
        return None
    return (max(controls) - min(controls)) / mean


def band(
    deltas: Sequence[float],
    own_scatter: float | None,
    control_scatter: float | None,
    drifts: Sequence[float | None],
    passes: Sequence[float] = (),
    garbage: float = 0.0,
) -> NoiseBand | None:
    """The band of a median delta; None where nothing is known of any scatter.

    `deltas` are the repeats' own deltas, each against its job's control, so that their spread holds what differs
    between runs and jobs. `control_scatter` is None where several runs of the control show it already.
    `passes` are all known step times of the control: they stand in where one run against one control is all there is.
    `garbage` is by how much the garbage collection of the runs and of their controls differ, as a share of the
    control's step: the scatter of a window leaves it out, since it comes at a pace of its own. How long it takes is
    chance, but it is part of the delta, not independent of it: so it widens the band by all of itself.
    Contributions are independent and add in quadrature; the largest drift of the jobs counts. A scatter is a share of
    its own mean, and a delta a ratio less one, so what a share moves the delta by grows with the ratio.
    """
    known_drifts = [value for value in drifts if value is not None]
    worst_drift = max(known_drifts) if known_drifts else None
    stand_in = drift(passes) if worst_drift is None and len(deltas) < 2 else None
    worst_drift = worst_drift if stand_in is None else stand_in
    if len(deltas) < 2 and own_scatter is None and control_scatter is None and worst_drift is None:
        return None
    ratio = 1.0 + (statistics.median(deltas) if deltas else 0.0)
    own = spread_of_median(deltas) if len(deltas) >= 2 else own_scatter or 0.0
    control = control_scatter or 0.0
    moved = own if len(deltas) >= 2 else ratio * own
    return NoiseBand(
        half_width=garbage + math.hypot(moved, ratio * control, ratio * (worst_drift or 0.0)),
        basis=BASIS_REPEATS if len(deltas) >= 2 else BASIS_WINDOW,
        runs=len(deltas),
        own=own,
        control=control,
        drift=worst_drift,
        garbage=garbage,
        passes=0 if stand_in is None else len(passes),
    )
