"""One screen of what runs and waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from orchestrator.dispatch.attempt import slowest_rank
from orchestrator.dispatch.liveness import RUNNING, CurrentTrial, DriverState
from orchestrator.report.remaining import Remaining, left_text
from orchestrator.report.status import studies_table, waiting_lines
from orchestrator.report.table import plain_lines
from orchestrator.report.text import plain
from orchestrator.store.hours import StudyHours
from orchestrator.store.overview import StudyProgress, WaitingTrial


def watch_lines(
    studies: Sequence[StudyProgress],
    drivers: Sequence[DriverState],
    waiting: Sequence[WaitingTrial],
    now: float,
    *,
    held: Collection[str] = frozenset(),
    left: Mapping[str, Remaining] | None = None,
    hours: Sequence[StudyHours] = (),
    allowed: Mapping[str, float] | None = None,
) -> list[str]:
    """The screen's lines: studies by outcome, each live batch with what it runs and has left, and what waits.

    `held` are those of `waiting` that a driver holds back; `left` goes by batch, `allowed` (the GPU-hours that a study
    may take) by study.
    """
    lines = plain_lines(studies_table(studies)) if studies else ["No study has been run here yet."]
    for driver in drivers:
        lines.append(_driver_line(driver, now))
        lines += [f"  {_trial_line(current, now)}" for current in driver.current]
        known = (left or {}).get(driver.batch)
        lines += [f"  {left_text(known)}"] if known is not None else []
    return [*lines, *waiting_lines(waiting, held), *_hours_lines(hours, list((left or {}).values()), allowed or {})]


def place(current: CurrentTrial) -> tuple[str | None, int]:
    """Stage and iteration of the slowest rank: by its beacon where that can be read here, else as the driver said."""
    last = slowest_rank(Path(current.beacon_dir)) if current.beacon_dir else None
    if last is not None:
        return str(last.stage), last.iteration
    return current.stage, current.iteration or 0


def _hours_lines(hours: Sequence[StudyHours], left: Sequence[Remaining], allowed: Mapping[str, float]) -> list[str]:
    spent = {one.study: one.spent for one in hours}
    lines = []
    for study in dict.fromkeys([*spent, *(one.study for one in left if one.gpu_hours is not None)]):
        coming = [one.gpu_hours for one in left if one.study == study and one.gpu_hours is not None]
        said = [f"{spent.get(study, 0.0):.3g} spent"]
        said += [f"about {sum(coming):.2g} left to run"] if coming else []
        said += [f"{allowed[study]:g} allowed"] if study in allowed else []
        lines.append(f"GPU-hours  {plain(study)}  {', '.join(said)}")
    return lines


def _driver_line(driver: DriverState, now: float) -> str:
    job = f"job {driver.job['job_id']} " if driver.job and driver.job.get("job_id") else ""
    where = f" on {plain(driver.job['nodes'])}" if driver.job and driver.job.get("nodes") else ""
    silent = now - driver.heartbeat
    quiet = f", no sign for {silent:.0f} s" if driver.state == RUNNING and silent > 60 else ""
    return f"{job}batch {driver.batch} {driver.state}{where}: {driver.done} of {driver.total} done{quiet}"


def _trial_line(current: CurrentTrial, now: float) -> str:
    stage, number = place(current)
    iteration = f" iteration {number}" if number else ""
    return f"{plain(current.name)}: {stage or 'starting'}{iteration}, {max(0.0, now - current.since):.0f} s"
