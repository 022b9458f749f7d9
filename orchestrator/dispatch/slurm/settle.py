"""What became of jobs: one question to Slurm for all of them, and its answer written where collecting finds it.

Never submits anything. What has no result afterwards is open, and the user's next command runs it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.dispatch import attempt as attempts
from orchestrator.dispatch.dead import close_attempts
from orchestrator.dispatch.liveness import DRIVER_FILE, LOST, RUNNING, SUBMITTED, SUBMITTING, read_driver_state
from orchestrator.dispatch.slurm.accounting import Heard, JobRows, Row, SlurmUnavailable, ask_about, ask_for_names
from orchestrator.dispatch.slurm.parameters import JOB_PREFIX
from orchestrator.dispatch.slurm.record import (
    NEVER_STARTED,
    OPEN,
    OVER,
    VANISHED,
    Submission,
    give_up_token,
    no_sbatch_under_way,
    read_submission,
    write_submission,
)
from orchestrator.dispatch.submit import batch_dirs, read_batch, results_lock
from orchestrator.records.jsonfile import FormatError, write_json
from orchestrator.records.redact import redact_text

PATIENCE_SECONDS = 120.0
"""How long a job may be unknown to Slurm after its submission before it counts as vanished."""
_LOG_TAIL_BYTES = 4000
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_NO_PICKLE = "could not find submitted jobs in path"


class Fate(Enum):
    """What is known of a submitted job."""

    LIVE = "live"
    QUEUED_AGAIN = "queued-again"
    """It waits to start, or to start again: nothing of it runs now."""
    OVER = "over"
    VANISHED = "vanished"


@dataclass(frozen=True)
class Settled:
    """A batch whose job has ended since somebody last looked."""

    batch: str
    job_id: str | None
    state: str


def fate_of_job(submission: Submission, heard: Heard, now: float) -> tuple[Fate, Row | None]:
    """What Slurm's answer says of a submitted job. A job of another name under its number is not it."""
    job = heard.jobs.get(submission.job_id or "")
    if job is not None and job.job.name != submission.job_name:
        job = None
    if job is None:
        if not heard.complete and now - submission.at > PATIENCE_SECONDS:
            return Fate.OVER, None  # only the queue could be asked, and it forgets what has ended
        return (Fate.VANISHED if now - submission.at > PATIENCE_SECONDS else Fate.LIVE), None
    if job.is_live:
        return (Fate.QUEUED_AGAIN if job.is_queued else Fate.LIVE), _last_end(job)
    return Fate.OVER, job.job


def settle(results_dir: Path) -> list[Settled]:
    """Find out about every open submission below a results folder, and write what became of it.

    Raises:
        EnvironmentFailure: the results folder cannot be written.
    """
    if next((folder for folder in batch_dirs(results_dir) if _open_submission(folder)), None) is None:
        return []
    with results_lock(results_dir):
        open_now = {
            folder: submission for folder in batch_dirs(results_dir) if (submission := _open_submission(folder))
        }
        try:
            found = _recover(open_now)
            return found + _settle_submitted(results_dir, open_now)
        except SlurmUnavailable:
            return []  # what cannot be asked stays as it is
        except OSError as error:
            raise EnvironmentFailure(f"The results folder {results_dir} cannot be written: {error}.") from error


def _open_submission(folder: Path) -> Submission | None:
    try:
        submission = read_submission(folder)
    except FormatError:
        return None
    return submission if submission is not None and submission.state in OPEN else None


def _recover(open_now: dict[Path, Submission]) -> list[Settled]:
    """Submissions that were under way when their command was killed: find the job by its name, or none ever was."""
    under_way = {folder: submission for folder, submission in open_now.items() if submission.state == SUBMITTING}
    if not under_way:
        return []
    for folder, submission in under_way.items():
        with no_sbatch_under_way(folder):
            open_now[folder] = give_up_token(folder, submission)
    names = [submission.job_name for submission in under_way.values()]
    heard = ask_for_names(names, min(submission.at for submission in under_way.values()))
    by_name = {job.job.name: job for job in sorted(heard.jobs.values(), key=lambda job: int(job.job.job_id))}
    found = []
    for folder in under_way:
        submission = open_now[folder]
        job = by_name.get(submission.job_name)
        if job is None:
            open_now.pop(folder)
            write_submission(folder, replace(submission, state=NEVER_STARTED))
            _forget_driver(folder, NEVER_STARTED)
            found.append(Settled(submission.batch, None, NEVER_STARTED))
            continue
        adopted = replace(submission, state=SUBMITTED, job_id=job.job.job_id)
        _deliver_pickle(folder, adopted)
        write_submission(folder, adopted)
        open_now[folder] = adopted
    return found


def _settle_submitted(results_dir: Path, open_now: Mapping[Path, Submission]) -> list[Settled]:
    heard = ask_about([submission.job_id for submission in open_now.values() if submission.job_id])
    now = time.time()
    found = []
    for folder, submission in open_now.items():
        fate, row = fate_of_job(submission, heard, now)
        if fate is Fate.LIVE or (fate is Fate.QUEUED_AGAIN and row is None):
            continue
        said = None if row is None else row_as_json(row)
        state = read_driver_state(folder)
        last_seen = state.heartbeat if state is not None and state.pid else now
        cancelled = row is not None and row.word == "CANCELLED"
        if fate is Fate.QUEUED_AGAIN:
            if state is not None and state.pid:
                close_attempts(results_dir, folder, last_seen, None, said)
            continue
        close_attempts(results_dir, folder, last_seen, None, said, cancelled)
        ended = OVER if fate is Fate.OVER else VANISHED
        if state is None or not state.pid:
            ended = _never_began(folder, submission, row, ended)
        _forget_driver(folder, LOST if ended == OVER else ended)
        write_submission(folder, replace(submission, state=ended, job=said or {}))
        found.append(Settled(submission.batch, submission.job_id, ended if row is None else row.state))
    return found


def _never_began(folder: Path, submission: Submission, row: Row | None, ended: str) -> str:
    """A job that ended before its driver said a word: cancelled, not able to start, or without its pickle."""
    batch = read_batch(folder)
    everything = range(len(batch.trials))
    if row is None or row.word not in ("CANCELLED", "FAILED", "COMPLETED"):
        return NEVER_STARTED if ended == OVER else ended
    log = _job_log(folder, submission)
    if row.word == "CANCELLED":
        attempts.never_ran(batch, everything, "slurm", cancelled=True, scheduler=row_as_json(row))
    elif _NO_PICKLE in log or was_killed(row):
        return NEVER_STARTED
    else:
        words = log or f"the job ended {row.state} with {row.exit_code} before its driver began, and printed nothing"
        attempts.never_ran(batch, everything, "slurm", launch_error=words, scheduler=row_as_json(row))
    return ended


def was_killed(row: Row) -> bool:
    """Whether a job's script was ended from outside, by a signal that says nothing of the script. Pure."""
    _, _, number = (row.exit_code or "").partition(":")
    return number.isdigit() and int(number) in _FROM_OUTSIDE


def _deliver_pickle(folder: Path, submission: Submission) -> None:
    from orchestrator.dispatch.slurm.executor import deliver_pickle
    from orchestrator.dispatch.slurm.submission import SUBMITIT_FOLDER

    deliver_pickle(folder / SUBMITIT_FOLDER, str(submission.job_id))


def _job_log(folder: Path, submission: Submission) -> str:
    from orchestrator.dispatch.slurm.submission import SUBMITIT_FOLDER

    path = folder / SUBMITIT_FOLDER / f"{submission.job_id}_0_log.out"
    try:
        return redact_text(path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip())
    except OSError:
        return ""


def _forget_driver(folder: Path, state: str) -> None:
    """A driver that is gone says nothing more: what it said last is not what is."""
    before = read_driver_state(folder)
    if before is not None and (before.state in (RUNNING, SUBMITTING, SUBMITTED)):
        write_json(folder / DRIVER_FILE, replace(before, state=state, current=[], open_trials=[]))


def _last_end(job: JobRows) -> Row | None:
    """The row of an incarnation that ended before this one was queued."""
    return job.earlier[-1] if job.earlier else None


def row_as_json(row: Row) -> dict[str, Any]:
    """A job's row as an attempt keeps it."""
    return {
        "job_id": row.job_id,
        "state": row.state,
        "exit_code": row.exit_code,
        "nodes": row.nodes,
        "reason": row.reason,
        "name": row.name.removeprefix(JOB_PREFIX),
    }
