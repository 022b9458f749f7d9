"""How far studies are: counts, what runs, what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Connection, String, text

PENDING = "pending"
PLANNED = "planned"
UNFINISHED = "unfinished"
LEFT_OUT = "left-out"
"""A planned trial that a search ended without."""
REJECTED = "rejected"
ENDED = "ended"
NO_OUTCOME = "no outcome"
"""A published row whose source says none: there is no command that would bring one."""

_STATE = f"CASE WHEN origin = 'published' AND state = '{UNFINISHED}' THEN '{NO_OUTCOME}' ELSE state END"


@dataclass(frozen=True)
class StudyProgress:
    """The trials of one study by state, and those that ended by label."""

    name: str
    created_at: float | None
    trials: int = 0
    states: dict[str, int] = field(default_factory=dict)
    """`ended`, `running`, `pending` (a live job has it), `planned` (none has), `unfinished` (its job ended it),
    `rejected`."""
    labels: dict[str, int] = field(default_factory=dict)

    def leaving_out(self, trials: int) -> StudyProgress:
        """The same where a search left so many of the planned trials out."""
        if not trials:
            return self
        states = {**self.states, PLANNED: self.states.get(PLANNED, 0) - trials, LEFT_OUT: trials}
        return replace(self, states=states)


@dataclass(frozen=True)
class RunningTrial:
    """An attempt that runs, as far as the database knows. Times are unix seconds."""

    study: str | None
    name: str
    trial: str
    attempt: str
    role: str
    batch: str | None
    world_size: int
    train_iters: int | None
    started_at: float | None
    run_dir: str
    beacon_dir: str | None


@dataclass(frozen=True)
class WaitingTrial:
    """A trial without an outcome that does not run."""

    study: str
    name: str
    trial: str
    state: str


@dataclass(frozen=True)
class TrialLine:
    """A trial of a study with what the attempt that decides brought. Sizes are bytes."""

    trial: str
    name: str
    role: str
    state: str
    label: str | None
    iteration: int | None
    granularity: str | None
    modules: str | None
    peak_allocated: int | None
    peak_allocated_rank: int | None
    peak_allocated_stage: str | None
    peak_reserved: int | None
    step_ms: float | None
    tflops_per_gpu: float | None
    batch: str | None
    attempt: str | None

    def leaving_out(self) -> TrialLine:
        """The same where a search left it out."""
        return replace(self, state=LEFT_OUT)


def trial_lines(connection: Connection, study: str) -> list[TrialLine]:
    """The trials of a study, in the order that they were asked in."""
    columns = ", ".join(f"{_STATE} AS state" if name == "state" else name for name in TrialLine.__dataclass_fields__)
    query = text(f"SELECT {columns} FROM v_trials WHERE study = :study ORDER BY position, name")
    return [TrialLine(**row) for row in connection.execute(query, {"study": study}).mappings()]


def studies(connection: Connection, name: str | None = None) -> list[StudyProgress]:
    """Every study, or the one of that name; the newest first."""
    chosen, given = ("", {}) if name is None else (" WHERE name = :name", {"name": name})
    found = connection.execute(text("SELECT name, created_at FROM studies" + chosen), given).all()
    counts = text(
        f"SELECT study, {_STATE} AS state, label, COUNT(*) AS trials FROM v_trials"
        + ("" if name is None else " WHERE study = :name")
        + " GROUP BY study, origin, v_trials.state, label"
    )
    states: dict[str, Counter[str]] = {row.name: Counter() for row in found}
    labels: dict[str, Counter[str]] = {row.name: Counter() for row in found}
    for row in connection.execute(counts, given):
        states[row.study][row.state] += row.trials
        if row.label is not None and row.state == ENDED:
            labels[row.study][row.label] += row.trials
    progress = [
        StudyProgress(
            name=row.name,
            created_at=row.created_at,
            trials=states[row.name].total(),
            states=dict(sorted(states[row.name].items())),
            labels=dict(labels[row.name].most_common()),
        )
        for row in found
    ]
    return sorted(progress, key=lambda one: (-(one.created_at or 0.0), one.name))


def study_settings(connection: Connection, name: str | None = None) -> dict[str, dict[str, Any]]:
    """What was last asked of every study, or of the one of that name, as a whole: `study.gpu_hours`, say."""
    chosen, given = ("", {}) if name is None else (" WHERE name = :name", {"name": name})
    query = text("SELECT name, settings FROM studies" + chosen).columns(name=String, settings=JSON)
    return {row.name: row.settings or {} for row in connection.execute(query, given)}


def batch_folders(connection: Connection, names: Collection[str]) -> dict[str, list[str]]:
    """The folders of these studies' batches, oldest first."""
    query = "SELECT s.name AS study, b.folder AS folder FROM batches b JOIN studies s ON s.id = b.study_id"
    found: dict[str, list[str]] = {}
    for row in connection.execute(text(query + " ORDER BY b.created_at, b.id")):
        if row.study in names:
            found.setdefault(row.study, []).append(row.folder)
    return found


def newest_batches(connection: Connection, trials: Collection[str]) -> dict[str, set[str]]:
    """The folders of the newest batches that these trials are in, each with those of them that it has."""
    query = "SELECT bt.trial_id AS trial, b.folder AS folder FROM batch_trials bt JOIN batches b ON b.id = bt.batch_id"
    query += " WHERE b.folder <> ''"
    wanted, newest = set(trials), {}
    if wanted:
        for row in connection.execute(text(f"{query} ORDER BY b.created_at, b.id")):
            if row.trial in wanted:
                newest[row.trial] = row.folder
    found: dict[str, set[str]] = {}
    for trial, folder in newest.items():
        found.setdefault(folder, set()).add(trial)
    return found


def running(connection: Connection, study: str | None = None) -> list[RunningTrial]:
    """The attempts that run, the oldest first; also controls of trials that have their result."""
    query = """
        SELECT s.name AS study, a.name AS name, a.trial_id AS trial, a.number AS attempt, a.role AS role,
            a.batch_id AS batch, t.world_size AS world_size, t.train_iters AS train_iters,
            a.started_at AS started_at, a.run_dir AS run_dir, a.beacon_dir AS beacon_dir
        FROM attempts a JOIN trials t ON t.id = a.trial_id LEFT JOIN studies s ON s.id = a.study_id
        WHERE a.state = 'running'"""
    query += " AND s.name = :name" if study is not None else ""
    found = connection.execute(text(query + " ORDER BY a.started_at, a.id"), {"name": study} if study else {})
    return [RunningTrial(**row) for row in found.mappings()]


def waiting(connection: Connection, study: str | None = None) -> list[WaitingTrial]:
    """Trials that have no outcome and do not run, in the order of their study."""
    query = f"SELECT study, name, trial, state FROM v_trials WHERE {_STATE} IN ('pending', 'planned', 'unfinished')"
    if study is not None:
        query += " AND study = :name"
    found = connection.execute(text(query + " ORDER BY study, position"), {"name": study} if study else {})
    return [WaitingTrial(row.study, row.name, row.trial, row.state) for row in found]


def unsettled(connection: Connection) -> list[str]:
    """The folders of batches that were handed over and whose drivers have not said that all is done, or nothing."""
    states = "('submitting', 'submitted', 'running', 'unfinished', 'failed')"
    query = f"SELECT folder FROM batches WHERE folder <> '' AND (state IS NULL OR state IN {states})"
    return list(connection.execute(text(query)).scalars())


def results_dirs(connection: Connection, here: Path | None = None) -> list[str]:
    """The results folders that batches in the database came from: `here` for those that lie in it, whatever the
    database of a copied or moved folder says of them."""
    folders = connection.execute(text("SELECT DISTINCT folder FROM batches WHERE folder <> ''")).scalars()
    return sorted({str(folder_of(folder, here)) for folder in folders})


def folder_of(batch_dir: str, here: Path | None) -> Path:
    """The results folder of a batch's folder: `here` where the batch lies in it."""
    said = Path(batch_dir).parent.parent
    if here is None or said == here.absolute():
        return said
    return here.absolute() if (here / "batches" / Path(batch_dir).name / "batch.json").exists() else said
