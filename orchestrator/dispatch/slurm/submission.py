"""Batches handed to Slurm, so that a command that is killed at any instant loses no job and submits none twice."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.config.schema import SlurmCluster
from orchestrator.dispatch import attempt as attempts
from orchestrator.dispatch.batch import Ask, BatchSettings, make_batches
from orchestrator.dispatch.liveness import DRIVER_FILE, SUBMITTED, SUBMITTING, DriverState, read_driver_state
from orchestrator.dispatch.package import rank_package
from orchestrator.dispatch.retry import bad_nodes
from orchestrator.dispatch.slurm.accounting import SlurmUnavailable, ask_about
from orchestrator.dispatch.slurm.checked import check_cluster
from orchestrator.dispatch.slurm.cluster import cluster_of, shape_of
from orchestrator.dispatch.slurm.parameters import job_name, job_parameters, warning_seconds
from orchestrator.dispatch.slurm.record import (
    LOCK_FILE,
    REFUSED,
    SUBMISSION_FILE,
    Submission,
    read_submission,
    write_setup,
    write_submission,
)
from orchestrator.dispatch.submit import Submitted, batch_dirs, live_batches, results_lock, write_batch
from orchestrator.plan.candidate import group
from orchestrator.records import layout
from orchestrator.records.jsonfile import write_json
from orchestrator.records.redact import redact_text
from orchestrator.records.spec import Batch

SUBMITIT_FOLDER = "submitit"


def slurm_settings(
    request: Mapping[str, Any], study: str, results_dir: Path, fingerprint: Mapping[str, Any] | None = None
) -> BatchSettings:
    """What the batches of a command share, from its `cluster` group.

    Raises:
        UsageError: a setting of the cluster that cannot work.
        EnvironmentFailure: the results folder cannot be written.
    """
    check_cluster(cluster_of(group(request, "cluster")), str(results_dir.absolute()))
    try:
        package = rank_package(results_dir.absolute())
    except OSError as error:
        raise EnvironmentFailure(f"The results folder {results_dir} cannot be written: {error}.") from error
    return batch_settings(request, study, results_dir, fingerprint, package=package)


def batch_settings(
    request: Mapping[str, Any],
    study: str,
    results_dir: Path,
    fingerprint: Mapping[str, Any] | None = None,
    *,
    package: Path | None,
) -> BatchSettings:
    """The settings without a file written; a driver that is given no `package` makes it.

    Raises:
        UsageError: a setting of the cluster that cannot work.
    """
    group_of = dict(group(request, "cluster"))
    cluster = cluster_of(group_of)
    check_cluster(cluster, str(results_dir.absolute()))
    launcher = {
        "kind": cluster.kind,
        "cluster": group_of,
        "package": None if package is None else str(package),
        "python": cluster.python or sys.executable,
        "warning_seconds": warning_seconds(cluster.time),
    }
    return BatchSettings(
        study=study,
        results_dir=str(results_dir.absolute()),
        created_at=time.time(),
        launcher=launcher,
        parallel_trials=cluster.parallel_trials,
        max_attempts=1 + cluster.retries,
        trials_per_batch=cluster.trials_per_job,
        one_batch=cluster.kind == "here",
        fingerprint=fingerprint or {},
    )


def submit_slurm(
    asks: Sequence[Ask],
    settings: BatchSettings,
    *,
    exclude: Sequence[str] = (),
    announce: Callable[[], None] = lambda: None,
    measured: Callable[[], Collection[str]] = tuple,
    beside: Callable[[Batch], None] | None = None,
) -> Submitted:
    """Submit a job for every batch of these trials. Trials that a live batch will run are left to it, and those that
    `measured` names, asked while nobody else can submit, have got their result since they were planned.

    `announce` is called when every batch is written as `submitting` and sbatch has not been called, for whoever keeps
    a database. `beside` puts more beside a batch, before its job can start. A refused submission is kept with its
    words; the others go on.

    Raises:
        EnvironmentFailure: the results folder cannot be written, or there is no sbatch.
        UsageError: ranks that do not spread over nodes.
        ValueError: a request has no world size or no number of iterations.
    """
    _require_slurm()
    results_dir = Path(settings.results_dir)
    cluster = cluster_of(settings.launcher["cluster"])
    with results_lock(results_dir):
        taken = {trial: live.batch for live in live_batches(results_dir) for trial in live.open_trials}
        batches = make_batches([ask for ask in asks if ask.trial not in {*taken, *measured()}], settings)
        for batch in batches:
            shape_of(cluster, batch.trials[0].world_size)
        try:
            batches = [prepare(batch) for batch in batches]
            if beside is not None:
                for batch in batches:
                    beside(batch)
            announce()
            jobs: list[str | None] = [*_live_jobs(results_dir, cluster)]
            for batch in batches:
                avoided = [*exclude, *bad_nodes(results_dir, [trial.trial for trial in batch.trials])]
                jobs.append(_submit(batch, avoided, _after(jobs, cluster.max_jobs)))
        except OSError as error:
            raise EnvironmentFailure(f"The results folder {results_dir} cannot be written: {error}.") from error
    return Submitted(tuple(batches), {ask.trial: taken[ask.trial] for ask in asks if ask.trial in taken})


def submit_again(batch: Batch, exclude: Sequence[str]) -> str | None:
    """Submit a batch made from an earlier one, under the results folder's lock; why it was refused, or None.

    Raises:
        EnvironmentFailure: the results folder cannot be written, or there is no sbatch.
    """
    _require_slurm()
    try:
        batch = prepare(batch)
        cluster = cluster_of(batch.launcher["cluster"])
        _submit(batch, exclude, _after(_live_jobs(Path(batch.results_dir), cluster), cluster.max_jobs))
        submission = read_submission(layout.batch_dir(Path(batch.results_dir), batch.batch))
    except OSError as error:
        raise EnvironmentFailure(f"The results folder {batch.results_dir} cannot be written: {error}.") from error
    return submission.error if submission is not None else None


def hand_over(batch: Batch) -> str | None:
    """Submit a follow-up batch from inside a job; why it was refused, or None.

    Where a node may not submit, the batch is given up: its trials are open, and the user's next command runs them.
    """
    if shutil.which("sbatch") is None:
        return "there is no sbatch on this node"
    with results_lock(Path(batch.results_dir)):
        if read_submission(layout.batch_dir(Path(batch.results_dir), batch.batch)) is not None:
            return None
        batch = prepare(batch)
        cluster = cluster_of(batch.launcher["cluster"])
        others = [job for job in _live_jobs(Path(batch.results_dir), cluster) if job != os.environ.get("SLURM_JOB_ID")]
        _submit(batch, batch.avoid, _after(others, cluster.max_jobs), blame_trials=False)
    submission = read_submission(layout.batch_dir(Path(batch.results_dir), batch.batch))
    return submission.error if submission is not None else None


def _require_slurm() -> None:
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise EnvironmentFailure(
            "There is no Slurm here: sbatch is not on the PATH. Use cluster=local, or a login node of the cluster."
        )


def prepare(batch: Batch) -> Batch:
    """Write a batch with its setup lines, and that it is being submitted; the batch as it was written.

    Raises:
        OSError: the results folder cannot be written.
    """
    folder = layout.batch_dir(Path(batch.results_dir), batch.batch)
    batch = replace(batch, launcher={**batch.launcher, **write_setup(batch, folder)})
    write_batch(batch)
    write_submission(
        folder, Submission(batch.batch, SUBMITTING, secrets.token_hex(8), job_name(batch.batch), time.time())
    )
    _say(folder, batch, SUBMITTING, None)
    return batch


def _submit(batch: Batch, exclude: Sequence[str], after: str | None, *, blame_trials: bool = True) -> str | None:
    """Call sbatch for a prepared batch; the job's id, or None where it was refused."""
    from orchestrator.dispatch.slurm import executor

    folder = layout.batch_dir(Path(batch.results_dir), batch.batch)
    submission = read_submission(folder)
    assert submission is not None
    cluster = cluster_of(batch.launcher["cluster"])
    parameters = job_parameters(
        cluster,
        shape_of(cluster, batch.trials[0].world_size),
        batch.batch,
        parallel_trials=batch.parallel_trials,
        exclude=exclude,
        dependency=None if after is None else f"afterany:{after}",
    )
    submitit_folder = folder / SUBMITIT_FOLDER
    layout.make_private_dir(submitit_folder)
    guard = [str(folder / LOCK_FILE), str(folder / SUBMISSION_FILE), submission.token]
    try:
        job_id = executor.submit(submitit_folder, batch.launcher["python"], guard, parameters, folder)
    except executor.REFUSALS as error:
        _refused(batch, folder, submission, refusal_of(str(error)), blame_trials=blame_trials)
        return None
    write_submission(folder, replace(submission, state=SUBMITTED, job_id=job_id))
    _say(folder, batch, SUBMITTED, {"job_id": job_id})
    return job_id


def refusal_of(text: str) -> str:
    """sbatch's own words out of an error that tells of its command too."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("sbatch: error", "sbatch: fatal"))]
    return redact_text("\n".join(said or lines[-3:]))


def _refused(batch: Batch, folder: Path, submission: Submission, error: str, *, blame_trials: bool) -> None:
    write_submission(folder, replace(submission, state=REFUSED, error=error))
    _say(folder, batch, REFUSED, None, error)
    if blame_trials:
        attempts.never_ran(batch, range(len(batch.trials)), "slurm", launch_error=error)


def _after(jobs: Sequence[str | None], at_once: int | None) -> str | None:
    """The job that must have ended before the next one starts, where only so many may run at once."""
    if at_once is None or len(jobs) < at_once:
        return None
    return jobs[len(jobs) - at_once]


def _live_jobs(results_dir: Path, cluster: SlurmCluster) -> list[str]:
    """Jobs of this results folder that wait or run, oldest first, where only so many may run at once."""
    if cluster.max_jobs is None:
        return []
    found = [read_submission(folder) for folder in batch_dirs(results_dir)]
    submitted = sorted((one for one in found if one is not None and one.state == SUBMITTED), key=lambda one: one.at)
    known = [one.job_id for one in submitted if one.job_id is not None]
    try:
        jobs = ask_about(known).jobs
    except SlurmUnavailable:
        return []
    return [job for job in known if job in jobs and jobs[job].is_live]


def _say(folder: Path, batch: Batch, state: str, job: dict[str, Any] | None, error: str | None = None) -> None:
    """Speak for a driver that has not begun; never over one that has."""
    before = read_driver_state(folder)
    if before is not None and before.pid:
        return
    now = time.time()
    trials = [] if state == REFUSED else [trial.trial for trial in batch.trials]
    said = DriverState(
        batch=batch.batch,
        pid=0,
        pid_started=0,
        host="",
        started_at=now,
        heartbeat=now,
        state=state,
        done=0,
        total=len(batch.trials),
        open_trials=trials,
        error=error,
        job=job,
    )
    write_json(folder / DRIVER_FILE, said)
