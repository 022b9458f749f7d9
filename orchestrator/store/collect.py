"""Brings what ranks and drivers wrote into the database. Safe to repeat, to interrupt and to run twice at once."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text

from orchestrator.records import layout
from orchestrator.store.database import Store
from orchestrator.store.problem import Problem
from orchestrator.store.scan import Seen, batch_files, changed_attempts, changed_files, driver_files, plan_files


@dataclass
class Collected:
    """What one collection found. `problems` are of this collection; the database keeps them until they are gone."""

    new: int = 0
    updated: int = 0
    ranks: int = 0
    batches: int = 0
    plans: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.new or self.updated or self.batches or self.plans)


def collect(store: Store, results_dir: Path, *, workers: int | None = None, origin: str = "measured") -> Collected:
    """Collect what has changed below `results_dir` since the last time.

    Only files of this user, in folders that nobody else can write, are read. What cannot be read is reported and
    does not hold up the rest. `workers` is the number of processes that read records (default: one per core, and
    none for a few). `origin` is what trials are marked with that are new here.

    Raises:
        UntrustedFolderError: the results folder itself belongs to, or can be written by, somebody else.
        EnvironmentFailure: the database is locked, full, ...
    """
    started = time.perf_counter()
    collected = Collected()
    results_dir = results_dir.absolute()
    if not results_dir.is_dir():
        return collected
    layout.check_private(results_dir)
    if layout.runs_dir(results_dir).is_dir():
        layout.check_private(layout.runs_dir(results_dir))
    known = _known_sources(store, str(results_dir))
    plans = list(changed_files(plan_files(results_dir), known))
    batches = list(changed_files(batch_files(results_dir), known))
    drivers = list(changed_files(driver_files(results_dir), known))
    attempts: list[Seen] = []
    settled: list[Seen] = []
    for seen, differs in changed_attempts(results_dir, known, time.time()):
        (attempts if differs else settled).append(seen)
    if plans or batches or drivers or attempts or settled:
        from orchestrator.store.intake import Intake  # the models and rules are slow to import, and often not needed

        intake = Intake(store, collected, origin)
        intake.plans(plans)
        intake.batches(batches)
        intake.drivers(drivers)
        intake.attempts(attempts, workers)
        intake.settle(settled)
    collected.seconds = time.perf_counter() - started
    return collected


def open_problems(store: Store) -> list[Problem]:
    """The files that could not be collected, as they are now."""
    with store.reading() as connection:
        query = text("SELECT path, problem FROM sources WHERE problem IS NOT NULL ORDER BY path")
        return [Problem(row.path, row.problem) for row in connection.execute(query)]


def _known_sources(store: Store, results_dir: str) -> dict[str, Seen]:
    # A range instead of LIKE: it uses the index, and a path may hold any character.
    query = text("SELECT path, stamp, signature FROM sources WHERE path >= :first AND path < :last")
    bounds = {"first": results_dir + os.sep, "last": results_dir + chr(ord(os.sep) + 1)}
    with store.reading() as connection:
        return {row.path: Seen(row.path, row.stamp, row.signature) for row in connection.execute(query, bounds)}
