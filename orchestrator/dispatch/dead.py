"""Drivers that died: the attempts that they left without an end, and what their ranks left on nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.dispatch import attempt as attempts
from orchestrator.dispatch.home import original_of
from orchestrator.dispatch.launcher import Launcher
from orchestrator.dispatch.liveness import DRIVER_FILE, FAILED, LOST, RUNNING, DriverState, is_alive
from orchestrator.dispatch.local import LocalLauncher
from orchestrator.dispatch.submit import (
    batch_dirs,
    driver_state,
    live_original,
    read_batch,
    results_lock,
    silent,
    submission_of,
)
from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, write_json


def bury_dead_batches(results_dir: Path, launcher: Launcher | None = None) -> list[str]:
    """End the attempts of drivers that died, with what their ranks left; the batches it did that for.

    Such an attempt is cut short: its trial is open again. A driver that failed by itself has said so, and left the
    attempts that it was running without an end. Of one that died with the job it ran in, submitted by hand, Slurm says
    how that job ended; the nodes of one that did not are asked for what its ranks left, where they can be reached.

    Raises:
        EnvironmentFailure: the results folder cannot be written.
    """
    with results_lock(results_dir):
        dead = {folder: state for folder in batch_dirs(results_dir) if (state := _dead_driver(folder)) is not None}
        rows = _ends_of_jobs(dead)
        for batch_dir, said in dead.items():
            nodes = launcher or _launcher_of(batch_dir, said)
            try:
                # What ranks left on nodes is the original's to bring home, where this folder is a copy.
                mine = nodes if original_of(batch_dir) is None else None
                close_attempts(results_dir, batch_dir, said.heartbeat, mine, rows.get(batch_dir))
                nodes.close()
                end = said.state if said.state == FAILED else LOST
                write_json(batch_dir / DRIVER_FILE, dataclasses.replace(said, state=end, current=[], open_trials=[]))
            except OSError as error:
                raise EnvironmentFailure(f"{batch_dir} cannot be written: {error}.") from error
    return [batch_dir.name for batch_dir in dead]


def _dead_driver(batch_dir: Path) -> DriverState | None:
    """What a driver last said that ended without a word of its end, and whose job nobody else asks about."""
    state = driver_state(batch_dir)
    if state is not None and state.state != RUNNING and not state.current:
        return None
    if submission_of(batch_dir) is not None or is_alive(batch_dir) or live_original(batch_dir) is not None:
        return None
    return state or silent(batch_dir)


def _ends_of_jobs(dead: Mapping[Path, DriverState]) -> dict[Path, dict[str, Any]]:
    if not any(state.job for state in dead.values()):
        return {}
    from orchestrator.dispatch.slurm.held import ends_of_jobs

    return ends_of_jobs(dead)


def _launcher_of(batch_dir: Path, state: DriverState) -> Launcher:
    if state.job:
        from orchestrator.dispatch.slurm.held import launcher_of

        return launcher_of(batch_dir, state) or LocalLauncher()
    return LocalLauncher()


def close_attempts(
    results_dir: Path,
    batch_dir: Path,
    last_seen: float,
    launcher: Launcher | None,
    scheduler: dict[str, Any] | None = None,
    cancelled: bool = False,
) -> None:
    """End the attempts of a batch that have no end, and say of them what a scheduler said of their job.

    Raises:
        OSError: the results folder cannot be written.
    """
    for trial in _trials_of(results_dir, batch_dir):
        for run_dir in attempts.attempt_dirs(results_dir, trial):
            record = attempts.read_attempt(run_dir)
            if record is None or record.batch != batch_dir.name:
                continue
            attempts.close_lost(
                run_dir, record, attempts.read_spec(run_dir), launcher, last_seen, scheduler, cancelled=cancelled
            )


def _trials_of(results_dir: Path, batch_dir: Path) -> list[str]:
    """The trials of a batch; of one that is damaged, every trial of the folder: their attempts say whose they are."""
    try:
        return list(dict.fromkeys(trial.trial for trial in read_batch(batch_dir).trials))
    except FormatError:
        runs = layout.runs_dir(results_dir)
        return sorted(entry.name for entry in runs.iterdir() if entry.is_dir()) if runs.is_dir() else []
