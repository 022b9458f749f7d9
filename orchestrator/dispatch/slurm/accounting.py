"""What Slurm says of jobs and steps: one call for all of them, and its reading."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_SACCT_FIELDS = ("JobIDRaw", "JobName", "State", "ExitCode", "NodeList", "Reason", "Start", "End")
_SQUEUE_FORMAT = "%i|%j|%T|%r|%N"
_CALL_SECONDS = 60.0

LIVE_STATES = frozenset(
    {
        "PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED",
        "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "RESIZING",
    }
)  # fmt: skip
_PUT_BACK = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REQUEUED"})
"""Ends after which Slurm may put a job back into the queue."""
QUEUED_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})


@dataclass(frozen=True)
class Row:
    """A job or step as sacct gives it. Times are unix seconds."""

    job_id: str
    step: str | None
    """`batch`, `0`, …; None for the job itself."""
    name: str
    state: str
    exit_code: str | None = None
    """`code:signal`."""
    nodes: str | None = None
    reason: str | None = None
    start: float | None = None
    end: float | None = None

    @property
    def word(self) -> str:
        """The state without what follows it: `CANCELLED` for `CANCELLED by 1000`."""
        words = self.state.split()
        return words[0].rstrip("+").upper() if words else ""


@dataclass(frozen=True)
class JobRows:
    """All that is known of one job."""

    job: Row
    """Its last incarnation."""
    earlier: tuple[Row, ...] = ()
    """Incarnations before a requeue, oldest first."""
    steps: tuple[Row, ...] = ()

    @property
    def is_live(self) -> bool:
        return self.job.word in LIVE_STATES

    @property
    def is_queued(self) -> bool:
        """Whether it certainly runs nothing now: it waits to start, or to start again."""
        return self.job.word in QUEUED_STATES


@dataclass(frozen=True)
class Heard:
    """An answer of Slurm about several jobs."""

    jobs: dict[str, JobRows] = field(default_factory=dict)
    complete: bool = True
    """Whether a job that is absent is one that Slurm does not know; false where only the queue could be asked."""


class SlurmUnavailable(Exception):  # noqa: N818 - a condition, in the words of the command that met it
    """Neither sacct nor squeue could answer."""


def parse_sacct(text: str) -> dict[str, JobRows]:
    """Jobs by id from the output of our sacct call. Lines of other shapes are left out."""
    jobs: dict[str, list[Row]] = {}
    steps: dict[str, list[Row]] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != len(_SACCT_FIELDS):
            continue
        row = _row(fields)
        (jobs if row.step is None else steps).setdefault(row.job_id, []).append(row)
    return {job_id: JobRows(rows[-1], tuple(rows[:-1]), tuple(steps.get(job_id, ()))) for job_id, rows in jobs.items()}


def parse_squeue(text: str) -> dict[str, JobRows]:
    """Jobs by id from `squeue --noheader` with our format."""
    jobs = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 5:
            job_id, name, state, reason, nodes = fields
            jobs[job_id] = JobRows(Row(job_id, None, name, state, None, _given(nodes), _given(reason)))
    return jobs


def newest(accounts: Mapping[str, JobRows], queue: Mapping[str, JobRows]) -> dict[str, JobRows]:
    """What accounts say of jobs, but for those that the queue knows to wait or run again. Pure.

    Slurm writes that a job ended with its node, or gave way, some seconds before it writes that it waits again.
    """
    found = {**queue, **accounts}
    for key in accounts.keys() & queue.keys():
        old, new = accounts[key], queue[key]
        ended_for_another = old.job.word in _PUT_BACK and new.job.word == "COMPLETING"
        if not old.is_live and new.is_live and (ended_for_another or new.job.word != "COMPLETING"):
            found[key] = JobRows(new.job, (*old.earlier, old.job), old.steps)
    return found


def ask_about(job_ids: Sequence[str]) -> Heard:
    """What Slurm knows of these jobs, in one call: accounts, and the queue for what they do not have (yet).

    Raises:
        SlurmUnavailable: neither answers.
    """
    if not job_ids:
        return Heard()
    wanted = set(job_ids)

    def all_live(jobs: dict[str, JobRows]) -> bool:
        # The queue is asked of what has ended: accounts may not know yet that it was put back there.
        return set(jobs) == wanted and all(job.is_live for job in jobs.values())

    return _ask(["--jobs", ",".join(job_ids)], lambda job: job.job.job_id in wanted, all_live)


def ask_for_names(names: Sequence[str], since: float) -> Heard:
    """The jobs of this user that carry these names, submitted at `since` (unix seconds) or later.

    Raises:
        SlurmUnavailable: neither sacct nor squeue answers.
    """
    if not names:
        return Heard()
    wanted = set(names)
    start = f"now-{max(1, int((time.time() - since) // 60) + 2)}minutes"
    which = ["--name", ",".join(names), "--starttime", start]
    return _ask(which, lambda job: job.job.name in wanted, lambda jobs: False)


def ask_for_steps(job_id: str) -> tuple[Row, ...] | None:
    """The steps of a job; None where nothing keeps accounts."""
    try:
        text = _sacct(["--jobs", job_id])
    except SlurmUnavailable:
        return None
    found = parse_sacct(text).get(job_id)
    return () if found is None else found.steps


def cancel_waiting(job_id: str) -> None:
    """Take a job from the queue; one that has started is left to its driver."""
    with contextlib.suppress(SlurmUnavailable):  # it is over, or Slurm does not answer: the driver reads its file
        run_slurm(["scancel", "--state=PENDING", job_id])


def run_slurm(command: Sequence[str]) -> str:
    """The output of a Slurm command.

    Raises:
        SlurmUnavailable: it is not there, fails, or takes a minute.
    """
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=_CALL_SECONDS, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmUnavailable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise SlurmUnavailable(f"{command[0]}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


def _ask(
    which: Sequence[str], wanted: Callable[[JobRows], bool], satisfied: Callable[[dict[str, JobRows]], bool]
) -> Heard:
    accounts: dict[str, JobRows] | None = None
    refusal = ""
    try:
        accounts = parse_sacct(_sacct(which))
    except SlurmUnavailable as error:
        refusal = str(error)
    if accounts is not None and satisfied(accounts):
        return Heard(accounts)
    try:
        queue = parse_squeue(run_slurm(["squeue", "--me", "--noheader", "--states=all", "--format", _SQUEUE_FORMAT]))
    except SlurmUnavailable as error:
        if accounts is None:
            raise SlurmUnavailable(f"{refusal}; {error}") from error
        return Heard({key: job for key, job in accounts.items() if wanted(job)}, complete=False)
    found = queue if accounts is None else newest(accounts, queue)
    return Heard({key: job for key, job in found.items() if wanted(job)}, complete=accounts is not None)


def _sacct(which: Iterable[str]) -> str:
    return run_slurm(
        ["sacct", "--duplicates", "--parsable2", "--noheader", "--format", ",".join(_SACCT_FIELDS), *which]
    )


def _row(fields: Sequence[str]) -> Row:
    identity, name, state, exit_code, nodes, reason, start, end = fields
    job_id, _, step = identity.partition(".")
    return Row(
        job_id=job_id,
        step=step or None,
        name=name,
        state=state,
        exit_code=_given(exit_code),
        nodes=_given(nodes),
        reason=_given(reason),
        start=_seconds(start),
        end=_seconds(end),
    )


def _given(text: str) -> str | None:
    return None if text in ("", "None", "None assigned", "(null)") else text


def _seconds(text: str) -> float | None:
    return float(text) if text.isdigit() else None
