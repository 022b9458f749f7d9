"""What a live batch has still to do: runs, time and GPU-hours, at the mean of what runs took so far. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.dispatch.journal import ENDED, Event
from orchestrator.dispatch.liveness import DriverState
from orchestrator.records.spec import Batch
from orchestrator.report.text import counted

_ON_GPUS = "bridge"
"""The trainer whose ranks hold a GPU each."""


@dataclass(frozen=True)
class Remaining:
    """Of one batch. Runs include controls; those that go on now count with what they have left."""

    batch: str
    study: str
    runs: int
    seconds: float | None
    """Until its last run ends, once the job has its nodes; None where nothing has ended yet that could tell."""
    gpu_hours: float | None
    """None where `seconds` is, and where no rank holds a GPU."""


def remaining(
    batch: Batch, state: DriverState, events: Sequence[Event], now: float, *, earlier: Sequence[float] = ()
) -> Remaining:
    """`events` are the batch's own; `earlier` are seconds of the study's other runs, where none of it ended."""
    runs = max(0, state.total - state.done - len(state.held_back))
    own = [event.seconds for event in events if event.event == ENDED and event.seconds is not None]
    took = own or list(earlier)
    if not took:
        return Remaining(batch.batch, batch.study, runs, None, None)
    mean = statistics.fmean(took)
    begun = sum(min(mean, max(0.0, now - current.since)) for current in state.current)
    work = max(0.0, runs * mean - begun)
    ranks = [trial.world_size for trial in batch.trials if trial.trainer == _ON_GPUS and _is_open(trial.trial, state)]
    hours = work * statistics.fmean(ranks) / 3600 if ranks else None
    return Remaining(batch.batch, batch.study, runs, work / max(1, min(batch.parallel_trials, runs)), hours)


def _is_open(trial: str, state: DriverState) -> bool:
    """A driver that has said nothing yet has everything before it."""
    return not state.open_trials or trial in state.open_trials


def left_text(left: Remaining) -> str:
    """`about 12 min and 1.6 GPU-hours left`."""
    if left.seconds is None:
        return f"{counted(left.runs, 'run')} left; none has ended yet to tell the time"
    hours = "" if left.gpu_hours is None else f" and {left.gpu_hours:.2g} GPU-hours"
    return f"about {duration(left.seconds)}{hours} left"


def duration(seconds: float) -> str:
    """In the unit that a person would say it in."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
