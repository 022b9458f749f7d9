"""Drivers in jobs that a person submitted or holds: what Slurm says of those jobs, and their nodes while they last."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.dispatch.launcher import Launcher, LaunchError
from orchestrator.dispatch.liveness import DriverState
from orchestrator.dispatch.slurm.accounting import JobRows, SlurmUnavailable, ask_about
from orchestrator.dispatch.slurm.settle import row_as_json
from orchestrator.dispatch.submit import read_batch
from orchestrator.records.jsonfile import FormatError

_SLACK_SECONDS = 30.0
"""Between the clocks of Slurm and of the driver's node."""


def ends_of_jobs(dead: Mapping[Path, DriverState]) -> dict[Path, dict[str, Any]]:
    """By the folder of a batch whose driver died, the row of the job that it ran in; none where that one lives on."""
    jobs = {folder: str(state.job["job_id"]) for folder, state in dead.items() if state.job and state.job.get("job_id")}
    try:
        heard = ask_about(sorted(set(jobs.values())))
    except SlurmUnavailable:
        return {}
    found = {}
    for folder, job_id in jobs.items():
        rows = heard.jobs.get(job_id)
        if rows is not None and not rows.is_live and ran_in(rows, dead[folder]):
            found[folder] = row_as_json(rows.job)
    return found


def ran_in(rows: JobRows, state: DriverState) -> bool:
    """Whether a driver ran in this job, and not in one that had the number before or after it. Pure."""
    start, end = rows.job.start, rows.job.end
    before = start is not None and state.started_at < start - _SLACK_SECONDS
    after = end is not None and state.started_at > end + _SLACK_SECONDS
    return not before and not after


def launcher_of(batch_dir: Path, state: DriverState) -> Launcher | None:
    """A way to the nodes on which a dead driver's ranks were; None but in the allocation that it ran in."""
    held = os.environ.get("SLURM_JOB_ID")
    if not state.job or not held or str(state.job.get("job_id")) != held:
        return None
    from orchestrator.dispatch.slurm.job import launcher_for

    try:
        return launcher_for(read_batch(batch_dir), batch_dir)
    except (FormatError, LaunchError):
        return None
