"""The driver in an allocation: as the function of a submitted job, or in one that the user holds already."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.dispatch import attempt as attempts
from orchestrator.dispatch.dead import close_attempts
from orchestrator.dispatch.driver import Driver, Surroundings, batch_in, work
from orchestrator.dispatch.followup import follow_up, hopeless
from orchestrator.dispatch.interruption import Interruption
from orchestrator.dispatch.liveness import read_driver_state, take_driver_lock
from orchestrator.dispatch.package import rank_package
from orchestrator.dispatch.search import carry_search
from orchestrator.dispatch.slurm.accounting import SlurmUnavailable, ask_about, run_slurm
from orchestrator.dispatch.slurm.cluster import cluster_of
from orchestrator.dispatch.slurm.launcher import Allocation, SlurmLauncher
from orchestrator.dispatch.slurm.parameters import WARNING_SECONDS, limit_seconds
from orchestrator.dispatch.slurm.record import write_setup
from orchestrator.dispatch.slurm.settle import row_as_json
from orchestrator.records.spec import Batch

_LOCK_SECONDS = 15.0
"""How long the driver of a job's earlier incarnation may take to be gone."""
_ASK_SECONDS = 30.0
_EARLY_SECONDS = 90.0
"""How much earlier than asked Slurm may send its warning (man sbatch, --signal)."""
_GRACE_SECONDS = 600.0
_OWN_SECONDS = 20.0
"""What the driver needs to end, beyond the warning."""


def run(batch_dir: str) -> str:
    """What submitit calls in the batch step: works the batch down, and hands what is left to a follow-up job.

    Our handlers replace submitit's: its SIGTERM handler swallows the signal, and its USR2 handler requeues the job.
    """
    ends_at = _EndOfJob(os.environ.get("SLURM_JOB_ID", ""))
    interruption = Interruption(
        {
            signal.SIGTERM: lambda: ends_at.reason(within=_OWN_SECONDS),
            signal.SIGINT: lambda: attempts.DRIVER_SIGNAL,
            signal.SIGUSR2: lambda: ends_at.reason(within=WARNING_SECONDS + _EARLY_SECONDS),
        }
    )
    folder = Path(batch_dir)
    batch = batch_in(folder)
    if not _locked(folder):
        print(f"{folder}: another driver is working on this batch", file=sys.stderr)
        return "elsewhere"
    _explain_earlier(folder, batch)
    warning = float(batch.launcher.get("warning_seconds") or 0.0)
    surroundings = Surroundings(
        job=_job(os.environ), seconds_left=ends_at.seconds_left, margin=warning + _OWN_SECONDS, may_defer=True
    )
    driver = Driver(folder, batch, launcher_for(batch, folder), interruption, surroundings)
    state = work(driver)
    if interruption.reason in (None, attempts.JOB_TIME_LIMIT):
        _hand_over(batch, driver)
    elif interruption.reason == attempts.DRIVER_SIGNAL:
        _await_the_end(ends_at)
    return state


def drive_here(batch_dir: Path) -> str:
    """The driver of a user's own allocation: SIGTERM and SIGINT cancel, as on one's own machine, but for the SIGTERM
    that Slurm sends at the allocation's time limit.
    """
    ends_at = _EndOfJob(os.environ.get("SLURM_JOB_ID", ""))
    interruption = Interruption({signal.SIGTERM: ends_at.limit_or_cancelled, signal.SIGINT: lambda: attempts.CANCELLED})
    folder, batch = batch_dir, batch_in(batch_dir)
    surroundings = Surroundings(job=_job(os.environ), seconds_left=ends_at.seconds_left, margin=_OWN_SECONDS)
    return work(Driver(folder, batch, launcher_for(batch, folder), interruption, surroundings))


def _await_the_end(ends_at: _EndOfJob) -> None:
    """Let a preempted job be requeued: one that ends by itself within its grace would only be complete.

    A cancelled job is completing already, and is not held up.
    """
    deadline = time.monotonic() + _GRACE_SECONDS
    while ends_at.state() == "RUNNING" and time.monotonic() < deadline:
        time.sleep(1.0)


def launcher_for(batch: Batch, folder: Path) -> SlurmLauncher:
    """What starts the steps of a batch in the allocation that this process is in.

    Raises:
        LaunchError: it is in none.
    """
    launcher = batch.launcher
    setup_file = launcher.get("setup_file") or write_setup(batch, folder).get("setup_file")
    return SlurmLauncher(
        cluster_of(launcher["cluster"]),
        allocation=Allocation.of(os.environ),
        results_dir=batch.results_dir,
        package=launcher.get("package") or str(rank_package(Path(batch.results_dir))),
        python=launcher["python"],
        batch=batch.batch,
        setup_file=setup_file,
    )


def _hand_over(batch: Batch, driver: Driver) -> None:
    """Submit what is left as a follow-up job. Without any progress here, a further job would make none either."""
    left = driver.left_over()
    if not left.slots or not driver.ended:
        return
    for trial in hopeless(batch, left):
        print(f"{trial} did not fit into two jobs in a row: it needs a longer cluster.time", file=sys.stderr)
    rest = follow_up(batch, left, time.time())
    if rest is None:
        return
    from orchestrator.dispatch.slurm.submission import hand_over

    carry_search(batch, list(left.slots), rest)
    refusal = hand_over(rest)
    if refusal is not None:
        print(f"{len(rest.trials)} trials are left to the next command: {refusal}", file=sys.stderr)


def _explain_earlier(folder: Path, batch: Batch) -> None:
    """In a job that Slurm requeued: say of the attempts of its earlier incarnation how that one ended."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return
    try:
        job = ask_about([job_id]).jobs.get(job_id)
    except SlurmUnavailable:
        return
    state = read_driver_state(folder)
    if job is not None and job.earlier and state is not None:
        said = row_as_json(job.earlier[-1])
        close_attempts(Path(batch.results_dir), folder, state.heartbeat, None, said)


def _locked(batch_dir: Path) -> bool:
    deadline = time.monotonic() + _LOCK_SECONDS
    while take_driver_lock(batch_dir) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _job(environ: Any) -> dict[str, Any]:
    return {
        "job_id": environ.get("SLURM_JOB_ID"),
        "nodes": environ.get("SLURM_JOB_NODELIST"),
        "restarts": int(environ.get("SLURM_RESTART_COUNT") or 0),
    }


class _EndOfJob:
    """When the job's time is over, asked again from time to time: limits can be changed.

    By its start and limit, not by its end: Slurm moves the end of a job that it is about to preempt.
    """

    def __init__(self, job_id: str, clock: Callable[[], float] = time.time) -> None:
        self._job_id = job_id
        self._clock = clock
        self._asked_at = 0.0
        self._end: float | None = None

    def seconds_left(self) -> float | None:
        if self._clock() - self._asked_at > _ASK_SECONDS:
            self._asked_at = self._clock()
            self._end = self._ask()
        return None if self._end is None else self._end - self._clock()

    def reason(self, within: float) -> str:
        """What a signal means: the job's time is over within so many seconds, or else somebody ends the job."""
        self._asked_at = 0.0
        left = self.seconds_left()
        return attempts.JOB_TIME_LIMIT if left is not None and left <= within else attempts.DRIVER_SIGNAL

    def limit_or_cancelled(self) -> str:
        """What a SIGTERM means where a person may have sent it, too."""
        over = self.reason(within=_OWN_SECONDS) == attempts.JOB_TIME_LIMIT or self._squeue("%r") == "TimeLimit"
        return attempts.JOB_TIME_LIMIT if over else attempts.CANCELLED

    def state(self) -> str | None:
        """The job's state as the queue has it; None where it has none."""
        return self._squeue("%T")

    def _ask(self) -> float | None:
        text = self._squeue("%S|%l")
        if text is None:
            return self._end
        if not text:
            return 0.0  # the queue knows no such job any more, or it is over
        start, _, limit = text.partition("|")
        seconds = limit_seconds(limit)
        return float(start) + seconds if start.isdigit() and seconds is not None else None

    def _squeue(self, field: str) -> str | None:
        try:
            return run_slurm(["squeue", "--noheader", "--jobs", self._job_id, "--format", field]).strip()
        except SlurmUnavailable as error:
            return "" if "Invalid job id" in str(error) else None


def main(arguments: Sequence[str]) -> int:
    """`python -m orchestrator.dispatch.slurm.job BATCH_DIR`, in the script of a job submitted by hand."""
    (batch_dir,) = arguments
    return 1 if run(batch_dir) == "elsewhere" else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
