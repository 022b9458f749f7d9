"""submitit's executor with our sbatch call. Imports submitit: only where something is submitted."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, JobPaths
from submitit.slurm.slurm import _make_sbatch_string

from orchestrator.dispatch.slurm import job, sbatch_once

REFUSALS = (FailedJobError, FailedSubmissionError)


class SbatchOnce(submitit.SlurmExecutor):  # type: ignore[misc]  # submitit is not followed by mypy
    """A SlurmExecutor whose sbatch runs under the submission's lock and token."""

    def __init__(self, folder: Path, python: str, guard: list[str]) -> None:
        super().__init__(folder, max_num_timeout=0, python=f"exec {shlex.quote(python)}")
        self._guard = guard

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [
            sys.executable,
            "-I",
            "-S",
            str(sbatch_once.__file__),
            *self._guard,
            "sbatch",
            str(submission_file_path),
        ]


def submit(folder: Path, python: str, guard: list[str], parameters: dict[str, Any], batch_dir: Path) -> str:
    """Submit a job that runs a batch; its id.

    Raises:
        one of `REFUSALS`: sbatch refused, in its own words.
    """
    executor = SbatchOnce(folder, python, guard)
    executor.update_parameters(**parameters)
    return str(executor.submit(job.run, str(batch_dir)).job_id)


def script(folder: Path, python: str, parameters: dict[str, Any]) -> str:
    """The script that `submit` gives to sbatch, made as submitit makes it. Needs no Slurm."""
    command = f"exec {shlex.quote(python)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    return str(_make_sbatch_string(command=command, folder=folder, **parameters))


def deliver_pickle(folder: Path, job_id: str) -> bool:
    """Give a job the function that its submitter was killed before delivering; whether the job has one now."""
    wanted = Path(JobPaths(folder, job_id=job_id).submitted_pickle)
    if wanted.exists():
        return True
    waiting = sorted(folder.glob("*.pkl"), key=lambda path: path.stat().st_mtime)
    waiting = [path for path in waiting if "_" not in path.name]
    if not waiting:
        return False
    waiting[-1].replace(wanted)
    return True
