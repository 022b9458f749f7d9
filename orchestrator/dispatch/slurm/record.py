"""What is kept of a batch that was handed to Slurm."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.dispatch.liveness import SUBMITTED, SUBMITTING
from orchestrator.dispatch.slurm.cluster import cluster_of
from orchestrator.records import layout
from orchestrator.records.jsonfile import decode, read_json, write_json
from orchestrator.records.spec import Batch

SUBMISSION_FILE = "submission.json"
LOCK_FILE = "submission.lock"
SETUP_FILE = "setup.sh"

REFUSED = "refused"
NEVER_STARTED = "never-started"
VANISHED = "vanished"
OVER = "over"
OPEN = frozenset({SUBMITTING, SUBMITTED})
"""States in which a batch may still run."""


@dataclass(frozen=True)
class Submission:
    """What is known of a batch's job. Times are unix seconds."""

    SCHEMA: ClassVar[int] = 1

    batch: str
    state: str
    """`submitting` (sbatch may have been called), `submitted`, and then `over`, `refused`, `never-started` or
    `vanished`."""
    token: str
    """Of this call of sbatch: a later command writes another one to make sure that it can never happen."""
    job_name: str
    at: float
    job_id: str | None = None
    error: str | None = None
    """Why sbatch refused, in its own words."""
    job: dict[str, Any] = field(default_factory=dict)
    """The job's last row."""
    schema: int = SCHEMA


def write_setup(batch: Batch, folder: Path) -> dict[str, Any]:
    """The file of setup lines that ranks run first, where there are any: what the launcher is told of it."""
    setup = cluster_of(batch.launcher["cluster"]).setup
    if not setup:
        return {}
    layout.make_private_dir(folder)
    path = folder / SETUP_FILE
    path.write_text("\n".join(setup) + "\n", encoding="utf-8")
    return {"setup_file": str(path)}


def read_submission(folder: Path) -> Submission | None:
    """What is known of a batch's job; None for a batch of one's own machine.

    Raises:
        FormatError: it is damaged, or of a newer release.
    """
    try:
        return decode(Submission, read_json(folder / SUBMISSION_FILE), str(folder / SUBMISSION_FILE))
    except FileNotFoundError:
        return None


def write_submission(folder: Path, submission: Submission) -> None:
    """Keep what is known of a batch's job.

    Raises:
        OSError: the folder cannot be written.
    """
    write_json(folder / SUBMISSION_FILE, submission)


@contextlib.contextmanager
def no_sbatch_under_way(folder: Path) -> Iterator[None]:
    """Held while a submission is looked into: a call of sbatch that a killed command left behind has ended."""
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def give_up_token(folder: Path, submission: Submission) -> Submission:
    """Make sure that a call of sbatch that has not begun never will. Under `no_sbatch_under_way`."""
    submission = replace(submission, token=secrets.token_hex(8))
    write_submission(folder, submission)
    return submission
