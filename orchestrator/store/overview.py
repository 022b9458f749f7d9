"""How far studies are: counts, what runs, what waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, select, text

from orchestrator.store.models import STATE_RUNNING, Attempt, Batch, Study

PENDING = "pending"
PLANNED = "planned"
UNFINISHED = "unfinished"
REJECTED = "rejected"
ENDED = "ended"


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


def trial_lines(connection: Connection, study: str) -> list[TrialLine]:
    """The trials of a study, in the order that they were asked in."""
    columns = ", ".join(TrialLine.__dataclass_fields__)
    query = text(f"SELECT {columns} FROM v_trials WHERE study = :study ORDER BY position, name")
    return [TrialLine(**row) for row in connection.execute(query, {"study": study}).mappings()]


def studies(connection: Connection, name: str | None = None) -> list[StudyProgress]:
    """Every study, or the one of that name; the newest first."""
    chosen = () if name is None else (Study.name == name,)
    query = select(Study.name, Study.created_at).where(*chosen)
    found = {row.name: StudyProgress(row.name, row.created_at) for row in connection.execute(query)}
    counts = "SELECT study, state, label, COUNT(*) AS trials FROM v_trials"
    if name is not None:
        counts += " WHERE study = :name"
    states: dict[str, Counter[str]] = {key: Counter() for key in found}
    labels: dict[str, Counter[str]] = {key: Counter() for key in found}
    for row in connection.execute(text(counts + " GROUP BY study, state, label"), {"name": name} if name else {}):
        if row.study in found:
            states[row.study][row.state] += row.trials
            if row.label is not None and row.state == ENDED:
                labels[row.study][row.label] += row.trials
    return sorted(
        (
            StudyProgress(
                key,
                one.created_at,
                states[key].total(),
                dict(sorted(states[key].items())),
                dict(labels[key].most_common()),
            )
            for key, one in found.items()
        ),
        key=lambda one: (-(one.created_at or 0.0), one.name),
    )


def running(connection: Connection, study: str | None = None) -> list[RunningTrial]:
    """The attempts that run, the oldest first; also controls of trials that have their result."""
    query = (
        select(
            Study.name.label("study"),
            Attempt.name,
            Attempt.trial_id,
            Attempt.number,
            Attempt.role,
            Attempt.batch_id,
            Attempt.started_at,
            Attempt.run_dir,
            Attempt.beacon_dir,
            Attempt.spec,
            Attempt.record,
        )
        .outerjoin(Study, Study.id == Attempt.study_id)
        .where(Attempt.state == STATE_RUNNING)
        .order_by(Attempt.started_at, Attempt.id)
    )
    if study is not None:
        query = query.where(Study.name == study)
    return [
        RunningTrial(
            study=row.study,
            name=row.name,
            trial=row.trial_id,
            attempt=row.number,
            role=row.role,
            batch=row.batch_id,
            world_size=(row.record or {}).get("world_size") or 1,
            train_iters=(row.spec or {}).get("train_iters"),
            started_at=row.started_at,
            run_dir=row.run_dir,
            beacon_dir=row.beacon_dir,
        )
        for row in connection.execute(query)
    ]


def waiting(connection: Connection, study: str | None = None) -> list[WaitingTrial]:
    """Trials that have no outcome and do not run, in the order of their study."""
    query = "SELECT study, name, trial, state FROM v_trials WHERE state IN ('pending', 'planned', 'unfinished')"
    if study is not None:
        query += " AND study = :name"
    found = connection.execute(text(query + " ORDER BY study, position"), {"name": study} if study else {})
    return [WaitingTrial(row.study, row.name, row.trial, row.state) for row in found]


def results_dirs(connection: Connection) -> list[str]:
    """The results folders that batches in the database came from."""
    folders = connection.execute(select(Batch.folder).distinct().order_by(Batch.folder)).scalars()
    return sorted({str(Path(folder).parent.parent) for folder in folders if folder})
