"""Figures of one attempt from its ranks' records: peaks to the window's end, step time, losses. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from operator import itemgetter
from typing import Any

from orchestrator.records.rank import RankRecord
from orchestrator.vocabulary import SETUP_STAGES, Stage

_BEFORE_THE_WINDOW = frozenset(
    stage.value for stage in SETUP_STAGES | {Stage.CHECKPOINT_LOAD, Stage.GRAPH_CAPTURE, Stage.OPTIMIZER_INIT}
)
"""Stages that are over, or whose largest window is over, before the first measured iteration ends."""

_STAGE_PEAKS = itemgetter("stage", "peak_allocated", "peak_reserved")

WindowPeaks = Mapping[str, tuple[int | None, int | None]]
"""Stage to its largest allocated and reserved bytes, from set-up to the end of the steady window."""


@dataclass(frozen=True)
class StageSizes:
    """The stages of a rank's iterations, one iteration after the other, as columns."""

    counts: Sequence[int]
    """How many stages each iteration has."""
    stages: Sequence[str]
    allocated: Sequence[int | None]
    """Bytes."""
    reserved: Sequence[int | None]

    @classmethod
    def of(cls, counts: Sequence[int], rows: Sequence[tuple[str, int | None, int | None]]) -> StageSizes:
        """From rows of a stage, its allocated and its reserved bytes."""
        stages, allocated, reserved = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(counts, stages, allocated, reserved)


_ABSURD = 1e12
"""Milliseconds (thirty years) or TFLOP/s. A damaged record may say anything."""


@dataclass(frozen=True)
class Peak:
    """The largest of something: bytes, and where."""

    size: int
    stage: str
    rank: int | None = None


@dataclass(frozen=True)
class AttemptFigures:
    """Figures over all ranks of an attempt; None where nothing was measured."""

    allocated: Peak | None = None
    reserved: Peak | None = None
    stage_peaks: dict[str, list[int | None]] = field(default_factory=dict)
    """Stage to allocated, its rank, reserved, its rank."""
    step_ms: float | None = None
    step_ms_scatter: float | None = None
    step_gc_ms: float | None = None
    """What garbage collection took of a step, mean over the window."""
    step_count: int | None = None
    tflops_per_gpu: float | None = None
    losses: list[list[Any]] = field(default_factory=list)
    last_loss: float | None = None
    replays: int | None = None
    """Times that ranks entered the replay stage."""


def window_peaks(record: RankRecord, iteration_stages: Sequence[Sequence[Mapping[str, Any]]], last: int) -> WindowPeaks:
    """Largest sizes of each stage of one rank up to the end of iteration `last`.

    `iteration_stages` are the stage rows of `record.iterations`, as their file has them. A rank that did not complete
    the window counts as far as it came; so does one that recorded no stages by iteration.
    """
    rows = list(map(_STAGE_PEAKS, chain.from_iterable(iteration_stages)))
    return peaks_to(record, StageSizes.of(tuple(map(len, iteration_stages)), rows), last)


def peaks_to(record: RankRecord, sizes: StageSizes, last: int) -> WindowPeaks:
    """The same from columns."""
    done = record.iterations[-1].number if record.iterations else 0
    if done < last or not sizes.stages:
        return {row.stage.value: (row.peak_allocated, row.peak_reserved) for row in record.stages}
    allocated: dict[str, int] = {}
    reserved: dict[str, int] = {}
    for row in record.stages:
        stage = row.stage.value
        if stage in _BEFORE_THE_WINDOW:
            _raise_to(allocated, stage, row.peak_allocated)
            _raise_to(reserved, stage, row.peak_reserved)
    within = sum(1 for _ in takewhile(lambda iteration: iteration.number <= last, record.iterations))
    end = sum(sizes.counts[:within])
    for stage, size, also in zip(sizes.stages[:end], sizes.allocated, sizes.reserved, strict=False):
        if size is not None and size > allocated.get(stage, -1):
            allocated[stage] = size
        if also is not None and also > reserved.get(stage, -1):
            reserved[stage] = also
    return {stage: (allocated.get(stage), reserved.get(stage)) for stage in {**allocated, **reserved}}


def _raise_to(known: dict[str, int], stage: str, size: int | None) -> None:
    if size is not None:
        known[stage] = max(size, known.get(stage, size))


def largest(peaks: WindowPeaks, which: int) -> Peak | None:
    """The largest over stages: `which` is 0 for allocated, 1 for reserved."""
    found = [(sizes[which], stage) for stage, sizes in peaks.items() if sizes[which] is not None]
    if not found:
        return None
    size, stage = max(found, key=lambda pair: pair[0] or 0)
    return Peak(size or 0, stage)


def attempt_figures(
    ranks: Mapping[int, RankRecord], peaks: Mapping[int, WindowPeaks], window: tuple[int, int]
) -> AttemptFigures:
    """Join the ranks of an attempt. Step time is the mean over the window of each iteration's slowest rank, and is
    None unless every iteration of the window was completed by every rank that left a record. Its scatter is that of the
    same iterations less what garbage collection took of them, which comes every so many steps and hides the rest."""
    by_stage = _stage_peaks(peaks)
    steps, garbage = _window_steps(ranks.values(), window)
    quiet = [step - taken for step, taken in zip(steps, garbage, strict=True)] if garbage else steps
    tflops = [
        iteration.tflops_per_gpu
        for record in ranks.values()
        for iteration in record.iterations
        if iteration.tflops_per_gpu is not None
        and 0 <= iteration.tflops_per_gpu < _ABSURD
        and window[0] <= iteration.number <= window[1]
    ]
    losses = next((found for rank in sorted(ranks) if (found := _losses(ranks[rank]))), [])
    finite = [loss for _, loss in losses if isinstance(loss, float)]
    return AttemptFigures(
        allocated=_over_ranks(by_stage, 0),
        reserved=_over_ranks(by_stage, 2),
        stage_peaks=by_stage,
        step_ms=statistics.fmean(steps) if steps else None,
        # The smaller: ranks that wait for another anyhow may collect then, and their step is no longer for it.
        step_ms_scatter=min(map(statistics.stdev, (steps, quiet))) if len(steps) > 1 else None,
        step_gc_ms=statistics.fmean(garbage) if garbage else None,
        step_count=len(steps) or None,
        tflops_per_gpu=statistics.fmean(tflops) if tflops else None,
        losses=losses,
        last_loss=finite[-1] if finite else None,
        replays=_replays(ranks.values()),
    )


def _stage_peaks(peaks: Mapping[int, WindowPeaks]) -> dict[str, list[int | None]]:
    joined: dict[str, list[int | None]] = {}
    for rank in sorted(peaks):
        for stage, sizes in peaks[rank].items():
            row = joined.setdefault(stage, [None, None, None, None])
            for place, size in zip((0, 2), sizes, strict=True):
                known = row[place]
                if size is not None and (known is None or size > known):
                    row[place], row[place + 1] = size, rank
    return joined


def _over_ranks(by_stage: Mapping[str, list[int | None]], place: int) -> Peak | None:
    best: Peak | None = None
    for stage, row in by_stage.items():
        size = row[place]
        if size is not None and (best is None or size > best.size):
            best = Peak(size, stage, row[place + 1])
    return best


def _window_steps(records: Iterable[RankRecord], window: tuple[int, int]) -> tuple[list[float], list[float]]:
    """Milliseconds of each of the window's iterations, and of the garbage collected in it: each the most of any rank,
    since one that collects makes the others wait. The second list is empty where a rank does not know."""
    slowest: dict[int, float] = {}
    garbage: dict[int, float] = {}
    counts: dict[int, int] = {}
    total, known = 0, True
    for record in records:
        total += 1
        for iteration in record.iterations:
            number, taken = iteration.number, iteration.gc_milliseconds
            if window[0] <= number <= window[1] and 0 <= iteration.milliseconds < _ABSURD:
                slowest[number] = max(slowest.get(number, 0.0), iteration.milliseconds)
                counts[number] = counts.get(number, 0) + 1
                if taken is None or not 0 <= taken <= iteration.milliseconds:
                    known = False
                else:
                    garbage[number] = max(garbage.get(number, 0.0), taken)
    wanted = range(window[0], window[1] + 1)
    if total == 0 or any(counts.get(number, 0) < total for number in wanted):
        return [], []
    return [slowest[number] for number in wanted], [garbage[number] for number in wanted] if known else []


def _replays(records: Iterable[RankRecord]) -> int | None:
    recorded = [record.stages for record in records if record.stages]
    if not recorded:
        return None
    return sum(row.entries for stages in recorded for row in stages if row.stage is Stage.REPLAY)


def _losses(record: RankRecord) -> list[list[Any]]:
    return [
        [iteration.number, iteration.loss if math.isfinite(iteration.loss) else repr(iteration.loss)]
        for iteration in record.iterations
        if iteration.loss is not None
    ]
