"""One attempt of a trial: its folder, its specification, its record at start and end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.dispatch.home import spec_at_home
from orchestrator.dispatch.launcher import Launcher, LaunchError, Step
from orchestrator.dispatch.liveness import CurrentTrial
from orchestrator.dispatch.queue import Fate, Made, fate_of
from orchestrator.outcome import Evidence, Outcome, decide
from orchestrator.records import layout
from orchestrator.records.beacon import BeaconReader
from orchestrator.records.jsonfile import FormatError, decode, read_json, write_json
from orchestrator.records.rank import LastBeacon, RankRecord
from orchestrator.records.redact import redact, redact_text
from orchestrator.records.spec import AttemptRecord, Batch, BatchTrial, TrialSpec

CANCELLED = "cancelled"
JOB_TIME_LIMIT = "job_time_limit"
DRIVER_SIGNAL = "driver_signal"
DRIVER_LOST = "driver_lost"
"""The driver was killed: it never wrote an end, and whoever found the attempt did."""

BACKSTOP_SECONDS = 30.0
"""How long past its own time limit a trial may live before the driver ends it: supervisors enforce the limit."""

_LOG_TAIL_BYTES = 4000


@dataclass
class RunningAttempt:
    """An attempt between its start and its end."""

    slot: int
    spec: TrialSpec
    record: AttemptRecord
    step: Step | None
    """None where the launch was refused."""
    deadline: float | None
    """Monotonic seconds after which the driver ends it."""
    ending: str | None = None
    """Why the driver asked it to end."""

    @property
    def current(self) -> CurrentTrial:
        last = slowest_rank(Path(self.spec.beacon_dir))
        return CurrentTrial(
            trial=self.record.trial,
            attempt=self.record.attempt,
            name=self.record.name,
            role=self.record.role,
            since=self.record.started_at,
            beacon_dir=self.spec.beacon_dir,
            run_dir=self.spec.run_dir,
            stage=None if last is None else str(last.stage),
            iteration=None if last is None else last.iteration,
        )

    def poll(self) -> bool:
        """Whether every rank has ended; ends a step that its supervisors did not end in time."""
        if self.step is None:
            return True
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.step.end()
        return self.step.poll()

    def end(self, reason: str) -> None:
        """Ask all ranks to end, and remember the first reason for it."""
        if self.ending is None:
            self.ending = reason
        if self.step is not None:
            self.step.end()


def begin(batch: Batch, slot: int, launcher: Launcher) -> RunningAttempt:
    """Start the next attempt of a batch's trial.

    Raises:
        OSError: the results folder cannot be written.
    """
    trial = batch.trials[slot]
    run_dir = layout.new_attempt_dir(Path(batch.results_dir), trial.trial)
    spec = _specification(trial, run_dir, launcher.new_beacon_dir(trial.trial, run_dir.name))
    record = _started(batch, trial, run_dir.name, launcher.kind)
    write_json(run_dir / layout.ATTEMPT_FILE, record)
    write_json(run_dir / layout.SPEC_FILE, spec)
    step: Step | None = None
    try:
        step = launcher.start(spec, run_dir / layout.SPEC_FILE)
    except LaunchError as error:
        record = replace(record, launch_error=redact_text(str(error)))
    limit = trial.time_limit_seconds
    deadline = None if limit is None else time.monotonic() + limit + BACKSTOP_SECONDS
    return RunningAttempt(slot, spec, record, step, deadline)


def finish(attempt: RunningAttempt, launcher: Launcher) -> tuple[AttemptRecord, Outcome, Fate]:
    """Bring the ranks' records home, write how the attempt ended, and say what follows.

    Raises:
        OSError: the attempt's folder cannot be written.
    """
    step, spec = attempt.step, attempt.spec
    notes = launcher.bring_home(spec)
    run_dir = Path(spec.run_dir)
    launch_error = attempt.record.launch_error
    scheduler: dict[str, Any] | None = None
    exit_codes: dict[str, int] = {}
    if step is not None:
        step.close()
        scheduler = step.scheduler
        exit_codes = {str(rank): code for rank, code in sorted(step.exit_codes.items())}
        launch_error = launch_error or step.launch_error
        attempt.ending = attempt.ending or step.cut_short
        if launch_error is None and attempt.ending is None:
            launch_error = _never_started(run_dir, step.exit_codes)
    record = replace(
        attempt.record,
        ended_at=time.time(),
        cancelled=attempt.ending == CANCELLED,
        cut_short=attempt.ending if attempt.ending in (JOB_TIME_LIMIT, DRIVER_SIGNAL) else None,
        launch_error=launch_error,
        exit_codes=exit_codes,
        scheduler=redact(scheduler),
        notes=notes,
    )
    write_json(run_dir / layout.ATTEMPT_FILE, record)
    outcome = judge(record, spec)
    return record, outcome, _fate(record, outcome)


def judge(record: AttemptRecord, spec: TrialSpec) -> Outcome:
    """What the evidence in an attempt's folder says."""
    run_dir = Path(spec.run_dir)
    return decide(
        Evidence(
            world_size=spec.world_size,
            train_iters=spec.train_iters,
            steady_window=spec.steady_window,
            ranks=rank_records(run_dir),
            attempt=record,
        )
    )


def rank_records(run_dir: Path) -> dict[int, RankRecord]:
    """The readable records of an attempt's ranks; a damaged one is as good as none."""
    records = {}
    for rank, path in layout.rank_files(run_dir).items():
        try:
            records[rank] = decode(RankRecord, read_json(path), str(path))
        except (FormatError, OSError):
            continue
    return records


def hosts_of(outcome: Outcome, spec: TrialSpec) -> set[str]:
    """The nodes of the ranks that an outcome names."""
    records = rank_records(Path(spec.run_dir))
    ranks = [rank for rank in (outcome.rank, *outcome.also_ranks) if rank is not None]
    return {records[rank].host.partition(".")[0] for rank in ranks if rank in records}


def slowest_rank(beacon_dir: Path) -> LastBeacon | None:
    """The beacon of the rank that is behind the others; None where no rank of this machine has one yet."""
    found = []
    for path in beacon_dir.glob("rank-*.beacon"):
        try:
            found.append(BeaconReader(path).last)
        except (FormatError, OSError):
            continue  # being created, or removed just now
    return min(found, key=lambda last: (last.iteration, last.at), default=None)


def made_before(batch: Batch, launcher: Launcher) -> list[Made]:
    """The attempts an earlier driver of this batch made; those it left without an end are given one.

    A job that Slurm requeued starts its driver again on the same batch.
    """
    made = []
    for slot, trial in enumerate(batch.trials):
        for run_dir in attempt_dirs(Path(batch.results_dir), trial.trial):
            record = read_attempt(run_dir)
            if record is None or record.batch != batch.batch or record.role != trial.role:
                continue
            spec = read_spec(run_dir)
            if record.ended_at is None:
                record = close_lost(run_dir, record, spec, launcher, time.time())
            if spec is None:
                continue
            outcome = judge(record, spec)
            made.append(Made(slot, _fate(record, outcome), outcome.cause))
    return made


def close_lost(
    run_dir: Path,
    record: AttemptRecord,
    spec: TrialSpec | None,
    launcher: Launcher | None,
    last_seen: float,
    scheduler: dict[str, Any] | None = None,
    *,
    cancelled: bool = False,
) -> AttemptRecord:
    """Write the end of an attempt whose driver was killed, with what its ranks left on this machine.

    One that the driver cut short because it was told to end gets only the scheduler's word on why, once. One that has
    an end of its own is left as it is. `scheduler` is the job's row.

    Raises:
        OSError: the attempt's folder cannot be written.
    """
    if record.ended_at is not None and (record.cut_short != DRIVER_SIGNAL or _of_job(record)):
        return record
    ended = record
    if record.ended_at is None:
        notes = [] if spec is None or launcher is None else launcher.bring_home(spec)
        ended = replace(record, ended_at=last_seen, cut_short=DRIVER_LOST, notes=[*record.notes, *notes])
    if scheduler is not None:
        ended = replace(ended, scheduler={**(record.scheduler or {}), **scheduler, "row_of": "job"})
    ended = replace(ended, cancelled=record.cancelled or cancelled)
    if ended != record:
        write_json(run_dir / layout.ATTEMPT_FILE, ended)
    return ended


def _of_job(record: AttemptRecord) -> bool:
    return record.scheduler is not None and record.scheduler.get("row_of") == "job"


def never_ran(
    batch: Batch,
    slots: Iterable[int],
    kind: str,
    *,
    launch_error: str | None = None,
    cancelled: bool = False,
    scheduler: dict[str, Any] | None = None,
) -> None:
    """Give trials of a batch an attempt that ended before any rank was started, with the reason.

    Raises:
        OSError: the results folder cannot be written.
    """
    now = time.time()
    for slot in slots:
        trial = batch.trials[slot]
        run_dir = layout.new_attempt_dir(Path(batch.results_dir), trial.trial)
        write_json(run_dir / layout.SPEC_FILE, _specification(trial, run_dir, ""))
        record = replace(
            _started(batch, trial, run_dir.name, kind),
            ended_at=now,
            launch_error=launch_error,
            cancelled=cancelled,
            scheduler=scheduler,
        )
        write_json(run_dir / layout.ATTEMPT_FILE, record)


def attempt_dirs(results_dir: Path, trial: str) -> list[Path]:
    """Folders of a trial's attempts, oldest first."""
    try:
        entries = list(layout.trial_dir(results_dir, trial).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        (entry for entry in entries if entry.name.isdecimal() and entry.is_dir()), key=lambda entry: int(entry.name)
    )


def read_attempt(run_dir: Path) -> AttemptRecord | None:
    """The attempt's record; None where the driver died before it wrote one, or it is damaged."""
    try:
        return decode(AttemptRecord, read_json(run_dir / layout.ATTEMPT_FILE), str(run_dir / layout.ATTEMPT_FILE))
    except (FileNotFoundError, FormatError):
        return None


def read_spec(run_dir: Path) -> TrialSpec | None:
    """What the attempt's ranks were given; None where the driver died before it wrote it, or it is damaged."""
    try:
        spec = decode(TrialSpec, read_json(run_dir / layout.SPEC_FILE), str(run_dir / layout.SPEC_FILE))
    except (FileNotFoundError, FormatError):
        return None
    return spec_at_home(spec, run_dir)


def _fate(record: AttemptRecord, outcome: Outcome) -> Fate:
    return fate_of(outcome.cause, outcome.label, cut_short=record.cut_short is not None, stage=outcome.stage)


def _specification(trial: BatchTrial, run_dir: Path, beacon_dir: str) -> TrialSpec:
    return TrialSpec(
        trial=trial.trial,
        attempt=run_dir.name,
        trainer=trial.trainer,
        world_size=trial.world_size,
        config=trial.config,
        run_dir=str(run_dir),
        beacon_dir=beacon_dir,
        steady_window=trial.steady_window,
        train_iters=trial.train_iters,
        stall_seconds=trial.stall_seconds,
        time_limit_seconds=trial.time_limit_seconds,
        memory_limit_bytes=trial.memory_limit_bytes,
        environment=trial.environment,
    )


def _started(batch: Batch, trial: BatchTrial, attempt: str, kind: str) -> AttemptRecord:
    return AttemptRecord(
        trial=trial.trial,
        attempt=attempt,
        batch=batch.batch,
        study=batch.study,
        name=trial.name,
        role=trial.role,
        trainer=trial.trainer,
        world_size=trial.world_size,
        started_at=time.time(),
        launcher=kind,
        repeat=trial.repeat,
        host=socket.gethostname(),
    )


def _never_started(run_dir: Path, exit_codes: dict[int, int]) -> str | None:
    """The launcher's last words where not one rank left a record, and not because supervisors were killed."""
    if layout.rank_files(run_dir) or (exit_codes and not any(code > 0 for code in exit_codes.values())):
        return None
    try:
        text = (run_dir / "launch.log").read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError as error:
        text = f"no output ({error})"
    return redact_text(text) or f"supervisors ended with {sorted(set(exit_codes.values()))} and printed nothing"
