"""Handing trials over, wherever they are to run: the one call that a run command makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.config.errors import UsageError
from orchestrator.dispatch.batch import NO_CONTROLS, Ask, BatchSettings, Controls
from orchestrator.dispatch.dead import bury_dead_batches
from orchestrator.dispatch.revisions import pins_of, prepare
from orchestrator.dispatch.search import write_search
from orchestrator.dispatch.secrecy import refuse_secrets
from orchestrator.dispatch.submit import (
    Submitted,
    local_settings,
    results_lock,
    start_driver,
    submit_local,
    write_batch,
)
from orchestrator.plan.candidate import group
from orchestrator.records import layout
from orchestrator.records.spec import Batch
from orchestrator.select.search import Search

LOCAL, HERE, SLURM = "local", "here", "slurm"


def follows(request: Mapping[str, Any]) -> bool:
    """Whether a run command stays to show progress: its drivers are processes of this machine."""
    return group(request, "cluster").get("kind") in (LOCAL, HERE)


def hand_over(
    asks: Sequence[Ask],
    request: Mapping[str, Any],
    study: str,
    results_dir: Path,
    *,
    fingerprint: Mapping[str, Any] | None = None,
    announce: Callable[[], None] = lambda: None,
    search: Search | None = None,
    measured: Callable[[], Collection[str]] = tuple,
    controls: Controls = NO_CONTROLS,
) -> Submitted:
    """Start drivers for these trials as `cluster` says: on this machine, in the allocation held here, or as jobs.

    With a `search`, the driver decides which of them run, one after the other.
    `announce` is called, for jobs, when their batches are written as being submitted and sbatch has not been called.
    `measured` names those of the trials that have a result by now; it is asked while nobody else can submit.
    `controls` says which of them need not run for their own sake, and may open jobs, and which cannot run.

    Raises:
        UsageError: the configuration does not fit the cluster.
        EnvironmentFailure: the results folder cannot be written, or there is no Slurm.
    """
    kind = group(request, "cluster").get("kind")
    for ask in asks:
        refuse_secrets(ask.candidate.request)
    prepare([pin for ask in asks for pin in pins_of(ask.candidate.request, str(results_dir.absolute()))])
    if kind == LOCAL:
        settings = replace(local_settings(request, study, results_dir, fingerprint), controls=controls)
        return submit_local(asks, _searching(settings, search), _with_search(write_batch, search), measured)
    from orchestrator.dispatch.slurm.record import write_setup
    from orchestrator.dispatch.slurm.submission import slurm_settings, submit_slurm

    if kind == HERE:
        _require_allocation()
    settings = replace(slurm_settings(request, study, results_dir, fingerprint), controls=controls)
    if kind == SLURM:
        beside = None if search is None else partial(_beside, search)
        return submit_slurm(asks, _searching(settings, search), announce=announce, measured=measured, beside=beside)

    def write(batch: Batch) -> Path:
        more = write_setup(batch, layout.batch_dir(Path(batch.results_dir), batch.batch))
        return write_batch(replace(batch, launcher={**batch.launcher, **more}))

    return submit_local(asks, _searching(settings, search), _with_search(write, search), measured)


def _searching(settings: BatchSettings, search: Search | None) -> BatchSettings:
    """One batch for all, which one driver works down, for a search."""
    if search is None:
        return settings
    return replace(settings, trials_per_batch=None, closing_controls=False)


def _beside(search: Search, batch: Batch) -> None:
    write_search(layout.batch_dir(Path(batch.results_dir), batch.batch), search)


def _with_search(write: Callable[[Batch], Path], search: Search | None) -> Callable[[Batch], Path]:
    def both(batch: Batch) -> Path:
        batch_dir = write(batch)
        if search is not None:
            write_search(batch_dir, search)
        return batch_dir

    return both


def hand_over_again(batches: Sequence[Batch], results_dir: Path, exclude: Sequence[str] = ()) -> list[str]:
    """Start drivers or jobs for batches made from earlier ones, where those ran; refusals in their own words.

    Raises:
        UsageError: a batch ran in an allocation that is not held here.
        EnvironmentFailure: the results folder cannot be written, or there is no Slurm.
    """
    from orchestrator.dispatch.slurm.submission import submit_again

    refusals = []
    with results_lock(results_dir):
        for batch in batches:
            kind = batch.launcher.get("kind")
            if kind == HERE:
                _require_allocation()
            if kind == SLURM:
                refusal = submit_again(batch, exclude)
                refusals += [refusal] if refusal is not None else []
            else:
                start_driver(write_batch(batch))
    return refusals


def settle(results_dir: Path) -> bool:
    """Write what became of drivers that were killed and of jobs that ended; whether there was anything.

    Raises:
        EnvironmentFailure: the results folder cannot be written.
    """
    from orchestrator.dispatch.slurm.settle import settle as settle_jobs

    buried = bury_dead_batches(results_dir)
    return bool(settle_jobs(results_dir)) or bool(buried)


def _require_allocation() -> None:
    if not os.environ.get("SLURM_JOB_ID"):
        raise UsageError(
            "cluster=here runs in a Slurm allocation that this shell holds, and SLURM_JOB_ID is not set: call `salloc` "
            "first, or use cluster=slurm."
        )
