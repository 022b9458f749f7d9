"""Handing batches to drivers of this machine, and finding, waiting for and cancelling them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.dispatch.batch import Ask, BatchSettings, make_batches
from orchestrator.dispatch.cancel import ask_to_cancel
from orchestrator.dispatch.home import at_home, original_of, refuse_copy
from orchestrator.dispatch.liveness import (
    CANCELLED,
    FINISHED,
    RUNNING,
    SUBMITTED,
    DriverState,
    is_alive,
    pid_start_time,
    read_driver_state,
    take_driver_lock,
)
from orchestrator.dispatch.slurm.accounting import cancel_waiting
from orchestrator.dispatch.slurm.record import OPEN, Submission, read_submission
from orchestrator.plan.candidate import group
from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode, read_json, write_json
from orchestrator.records.spec import Batch

DRIVER_LOG = "driver.log"
_LOCK = ".lock"
_HANDING_OVER = ".handing-over"
_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class LiveBatch:
    """A batch whose driver is alive, and the trials that it will still run."""

    batch: str
    study: str
    open_trials: frozenset[str]
    undecided: frozenset[str] = frozenset()
    """Those of them that a search may yet leave out: it is not running them."""


@dataclass(frozen=True)
class Submitted:
    """What a command handed over."""

    batches: tuple[Batch, ...]
    elsewhere: Mapping[str, str]
    """Trials that were asked for and that another live batch will run, with that batch."""


@contextlib.contextmanager
def results_lock(results_dir: Path) -> Iterator[None]:
    """Held while what is to be run is decided and handed over, so that two commands never run a trial twice.

    Raises:
        EnvironmentFailure: the folder cannot be written, or another command holds it for a minute.
    """
    batches = results_dir / "batches"
    try:
        layout.make_private_dir(batches)
        layout.check_private(batches)
        descriptor = os.open(batches / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(results_dir, error) from error
    try:
        _lock_within(descriptor, _WAIT_SECONDS, results_dir)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def handing_over(results_dir: Path) -> Iterator[None]:
    """Held by a command from its plan until its batches are there, so that whoever watches does not leave in between.

    Raises:
        EnvironmentFailure: the folder cannot be written, or others can.
    """
    try:
        layout.make_private_dir(results_dir)
        layout.check_private(results_dir)
        layout.make_private_dir(results_dir / "batches")
        descriptor = os.open(results_dir / "batches" / _HANDING_OVER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(results_dir, error) from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks: a watcher may then leave too early
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _unusable(results_dir: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"The results folder {results_dir} cannot be used ({error.strerror or error}): "
        "set results_dir to a folder of your own."
    )


def is_handing_over(results_dir: Path) -> bool:
    """Whether a command has planned, and has not handed over yet."""
    try:
        descriptor = os.open(results_dir / "batches" / _HANDING_OVER, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def live_batches(results_dir: Path) -> list[LiveBatch]:
    """Batches that a driver of this machine is working on, and those that Slurm has, oldest first."""
    found = []
    for batch_dir in batch_dirs(results_dir):
        submission = submission_of(batch_dir)
        state = driver_state(batch_dir)
        if not (is_alive(batch_dir) if submission is None else _slurm_has(submission, state)):
            continue
        try:
            batch = read_batch(batch_dir)
        except FormatError:  # its driver has read it, and lives
            found.append(LiveBatch(batch_dir.name, "", frozenset(() if state is None else state.open_trials)))
            continue
        trials = [trial.trial for trial in batch.trials] if state is None else state.open_trials
        undecided = frozenset(trials) - _executing(state) if (batch_dir / layout.SEARCH_FILE).exists() else frozenset()
        found.append(LiveBatch(batch.batch, batch.study, frozenset(trials), undecided))
    return found


def refuse_copies(results_dir: Path, batches: Collection[str] | None = None) -> None:
    """Refuse to act on batches, or all, that are copies of ones which a driver or Slurm has elsewhere.

    Raises:
        EnvironmentFailure: names both folders.
    """
    for batch_dir in batch_dirs(results_dir):
        if (batches is None or batch_dir.name in batches) and (original := live_original(batch_dir)) is not None:
            raise refuse_copy(batch_dir, original)


def live_original(batch_dir: Path) -> Path | None:
    """The results folder of which this batch is a copy, where a driver or Slurm has it there."""
    original = original_of(batch_dir)
    if original is None:
        return None
    there = layout.batch_dir(original, batch_dir.name)
    try:
        submission = submission_of(there)
        live = is_alive(there) if submission is None else _slurm_has(submission, driver_state(there))
    except OSError:
        return None  # not this user's: nor is what runs there
    return original if live else None


def _executing(state: DriverState | None) -> set[str]:
    return set() if state is None else {current.trial for current in state.current}


def _slurm_has(submission: Submission, state: DriverState | None) -> bool:
    """Whether a batch's job waits or runs, or may yet be requeued: not after its driver has done all there was."""
    done = state is not None and state.state in (FINISHED, CANCELLED)
    return submission.state in OPEN and not done


def local_settings(
    request: Mapping[str, Any], study: str, results_dir: Path, fingerprint: Mapping[str, Any] | None = None
) -> BatchSettings:
    """What the batches of a command share, from its `cluster` group."""
    cluster = group(request, "cluster")
    return BatchSettings(
        study=study,
        results_dir=str(results_dir.absolute()),
        created_at=time.time(),
        launcher={"kind": "local", "python": sys.executable, "setup": list(cluster.get("setup") or ())},
        parallel_trials=int(cluster.get("parallel_trials") or 1),
        max_attempts=1 + int(cluster.get("retries") or 0),
        one_batch=True,
        fingerprint=fingerprint or {},
    )


def state_of(results_dir: Path, batch: str) -> DriverState:
    """What a batch's driver last said; of one that has said nothing, that it was submitted."""
    folder = layout.batch_dir(results_dir, batch)
    return driver_state(folder) or silent(folder)


def submit_local(
    asks: Sequence[Ask],
    settings: BatchSettings,
    write: Callable[[Batch], Path] | None = None,
    measured: Callable[[], Collection[str]] = tuple,
) -> Submitted:
    """Start a driver for these trials in the background, in a session of its own.

    Trials that a live batch will run are left to it, and those that `measured` names have got their result since they
    were planned; it is asked while nobody else can submit. The driver survives a closed terminal and the end of this
    process. `write` is for a launcher that needs more beside the batch.

    Raises:
        EnvironmentFailure: the results folder cannot be written.
        ValueError: a request has no world size or no number of iterations.
    """
    results_dir = Path(settings.results_dir)
    with results_lock(results_dir):
        taken = {trial: live.batch for live in live_batches(results_dir) for trial in live.open_trials}
        batches = make_batches([ask for ask in asks if ask.trial not in {*taken, *measured()}], settings)
        try:
            for batch in batches:
                start_driver((write or write_batch)(batch))
        except OSError as error:
            raise EnvironmentFailure(f"The results folder {results_dir} cannot be written: {error}.") from error
    return Submitted(tuple(batches), {ask.trial: taken[ask.trial] for ask in asks if ask.trial in taken})


def start_driver(batch_dir: Path) -> None:
    """Start a driver for a batch, in a session of its own; none where one is working on it already.

    Raises:
        OSError: the folder cannot be written.
    """
    lock = take_driver_lock(batch_dir)
    if lock is None:
        return
    try:
        with (batch_dir / DRIVER_LOG).open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "orchestrator.dispatch.driver", str(batch_dir), "--lock-fd", str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock],
            )
    finally:
        os.close(lock)


def cancel(results_dir: Path, batch: str, trials: Iterable[str] | None = None) -> None:
    """Ask a batch's driver to end these trials, or everything: it answers within a second. A job that waits in the
    queue is taken from it where everything is to end.

    Raises:
        EnvironmentFailure: the results folder cannot be written, or is a copy of the one in which the batch runs.
    """
    batch_dir = layout.batch_dir(results_dir, batch)
    refuse_copies(results_dir, [batch])
    with results_lock(results_dir):
        try:
            ask_to_cancel(batch_dir, trials)
        except OSError as error:
            raise EnvironmentFailure(f"{batch_dir} cannot be written: {error}.") from error
    submission = submission_of(batch_dir)
    if submission is not None:
        if submission.job_id is not None and trials is None:
            cancel_waiting(submission.job_id)
        return
    state = driver_state(batch_dir)
    if state is not None and state.state == RUNNING and pid_start_time(state.pid) == state.pid_started:
        # Only a nudge: SIGCHLD wakes the driver, and the file says what is wanted.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(state.pid, signal.SIGCHLD)


def wait_for_end(results_dir: Path, batch: str, seconds: float) -> bool:
    """Whether a batch's driver has ended, waiting for it at most this long."""
    deadline = time.monotonic() + seconds
    while is_alive(layout.batch_dir(results_dir, batch)):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def batch_dirs(results_dir: Path) -> list[Path]:
    """Folders of the batches below a results folder, oldest first."""
    found = []
    try:
        with os.scandir(results_dir / "batches") as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    found.append((os.stat(f"{entry.path}/{layout.BATCH_FILE}").st_mtime_ns, entry.path))  # noqa: PTH116
    except FileNotFoundError:
        return []
    return [Path(path) for _, path in sorted(found)]


def read_batch(batch_dir: Path) -> Batch:
    """What a batch is to run.

    Raises:
        FormatError: it is damaged, or of a newer release.
        UntrustedFolderError: others could have written it.
    """
    layout.check_private(batch_dir)
    batch = decode(Batch, read_json(batch_dir / layout.BATCH_FILE), str(batch_dir / layout.BATCH_FILE))
    return at_home(batch, batch_dir)


def write_batch(batch: Batch) -> Path:
    """Write a batch where its driver reads it; the folder.

    Raises:
        OSError: the results folder cannot be written.
    """
    batch_dir = layout.batch_dir(Path(batch.results_dir), batch.batch)
    layout.make_private_dir(batch_dir)
    write_json(batch_dir / layout.BATCH_FILE, batch)
    return batch_dir


def silent(batch_dir: Path) -> DriverState:
    """The state of a driver that has said nothing that can be read: submitted when its batch was written."""
    try:
        listed = read_batch(batch_dir)
    except FormatError:
        created_at, total = (batch_dir / layout.BATCH_FILE).stat().st_mtime, 0
    else:
        created_at, total = listed.created_at, len(listed.trials)
    return DriverState(batch_dir.name, 0, 0, "", created_at, created_at, SUBMITTED, done=0, total=total)


def submission_of(batch_dir: Path) -> Submission | None:
    """What is known of a batch's job; None for a batch of one's own machine.

    Raises:
        EnvironmentFailure: it is damaged: whether there is a job cannot be told.
    """
    try:
        return read_submission(batch_dir)
    except FormatError as error:
        raise EnvironmentFailure(
            f"{error}. It says which Slurm job has this batch: see `squeue --me --name orchestrator-{batch_dir.name}`, "
            "and remove the file once there is no such job."
        ) from error


def driver_state(batch_dir: Path) -> DriverState | None:
    """What a batch's driver last said; None where it said nothing that can be read."""
    try:
        return read_driver_state(batch_dir)
    except FormatError:
        return None  # as good as a driver that never spoke: its lock says whether it lives


def _lock_within(descriptor: int, seconds: float, results_dir: Path) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EnvironmentFailure(
                    f"Another command has been handing over work in {results_dir} for {seconds:.0f} s. "
                    "Try again when it has ended."
                ) from None
            time.sleep(_POLL_SECONDS)
