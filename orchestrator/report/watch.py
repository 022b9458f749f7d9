"""One screen of what runs and waits."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.dispatch.liveness import RUNNING, CurrentTrial, DriverState
from orchestrator.report.status import studies_table, waiting_lines
from orchestrator.report.table import plain_lines
from orchestrator.report.text import plain
from orchestrator.store.overview import StudyProgress, WaitingTrial


def watch_lines(
    studies: Sequence[StudyProgress], drivers: Sequence[DriverState], waiting: Sequence[WaitingTrial], now: float
) -> list[str]:
    """The screen's lines: studies by outcome, each live batch with what it runs, and what waits."""
    lines = plain_lines(studies_table(studies)) if studies else ["No study has been run here yet."]
    for driver in drivers:
        lines.append(_driver_line(driver, now))
        lines += [f"  {_trial_line(current, now)}" for current in driver.current]
    return [*lines, *waiting_lines(waiting)]


def _driver_line(driver: DriverState, now: float) -> str:
    job = f"job {driver.job['job_id']} " if driver.job and driver.job.get("job_id") else ""
    where = f" on {plain(driver.job['nodes'])}" if driver.job and driver.job.get("nodes") else ""
    silent = now - driver.heartbeat
    quiet = f", no sign for {silent:.0f} s" if driver.state == RUNNING and silent > 60 else ""
    return f"{job}batch {driver.batch} {driver.state}{where}: {driver.done} of {driver.total} done{quiet}"


def _trial_line(current: CurrentTrial, now: float) -> str:
    place = "starting" if current.stage is None else current.stage
    iteration = f" iteration {current.iteration}" if current.iteration else ""
    return f"{plain(current.name)}: {place}{iteration}, {max(0.0, now - current.since):.0f} s"
