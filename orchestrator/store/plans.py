"""What a study asked for, kept before anything is dispatched: also the trials that were known, or refused."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Connection, select, update

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.records import layout
from orchestrator.records.jsonfile import encode, write_json
from orchestrator.store.clean import clean, clean_text
from orchestrator.store.database import Store
from orchestrator.store.models import Attempt, Study, StudyTrial, Trial
from orchestrator.store.requested import trial_row
from orchestrator.store.scan import PLANS
from orchestrator.store.write import insert_missing, pieces, study_id
from orchestrator.vocabulary import is_result

NEW = "new"
KNOWN = "known"
REJECTED = "rejected"


@dataclass(frozen=True)
class PlannedRow:
    """One trial of a plan."""

    trial: str
    name: str
    trainer: str
    world_size: int
    config: dict[str, Any]
    """The four recompute settings and the groups of a specification."""
    status: str = NEW
    """`new`, `known` (its result is there) or `rejected`."""
    reasons: list[str] = field(default_factory=list)
    """Why it was refused."""
    repeat: int = 0
    role: str = "trial"
    target: dict[str, Any] = field(default_factory=dict)
    """What else decides a result: environment, memory limit, GPU type, image, ..."""
    steady_window: tuple[int, int] | None = None
    train_iters: int | None = None


@dataclass(frozen=True)
class PlanRecord:
    """A study as one command asked for it. Also a file under `plans/`, from which a database can be rebuilt."""

    SCHEMA: ClassVar[int] = 1

    study: str
    created_at: float
    trials: list[PlannedRow]
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the study: target, repeats, mode, ..."""
    schema: int = SCHEMA


def record_plan(store: Store, results_dir: Path, plan: PlanRecord) -> Path:
    """Keep a plan as a file and in the database; the file. The same plan twice is one plan.

    Raises:
        EnvironmentFailure: the results folder or the database cannot be written.
    """
    cleaned = clean(encode(plan))
    identity = json.dumps({key: cleaned[key] for key in ("study", "trials", "settings")}, sort_keys=True)
    folder = results_dir / PLANS
    path = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:20]}.json"
    try:
        layout.make_private_dir(results_dir)
        layout.make_private_dir(folder)
        if not path.exists():
            write_json(path, cleaned)
    except OSError as error:
        raise EnvironmentFailure(
            f"The plan cannot be written to {folder} ({error.strerror}): set results_dir to a folder of your own."
        ) from error
    with store.writing() as connection:
        write_plan(connection, plan)
    return path


def write_plan(connection: Connection, plan: PlanRecord) -> None:
    """The study, its trials, and its members in the plan's order. Trials of earlier plans keep their places."""
    study = study_id(connection, plan.study, plan.created_at)
    if plan.settings:
        connection.execute(update(Study).where(Study.id == study).values(settings=clean(plan.settings)))
    insert_missing(connection, Trial, [_trial(one) for one in plan.trials])
    known = {
        row.trial_id: row.position
        for row in connection.execute(
            select(StudyTrial.trial_id, StudyTrial.position).where(StudyTrial.study_id == study)
        )
    }
    position = max(known.values(), default=-1) + 1
    fresh: dict[str, dict[str, Any]] = {}
    for one in plan.trials:
        values = {
            "name": clean_text(one.name),
            "role": one.role,
            "status": one.status,
            "reasons": clean(one.reasons) or None,
        }
        if one.trial in known:
            key = (StudyTrial.study_id == study, StudyTrial.trial_id == one.trial)
            connection.execute(update(StudyTrial).where(*key).values(**values))
        elif one.trial not in fresh:
            fresh[one.trial] = {"study_id": study, "trial_id": one.trial, "position": position + len(fresh), **values}
    insert_missing(connection, StudyTrial, list(fresh.values()))


def known_results(store: Store, trials: Iterable[str]) -> dict[str, str]:
    """The labels of those trials that have a result, by trial."""
    found: dict[str, str] = {}
    with store.reading() as connection:
        for some in pieces(sorted(set(trials))):
            query = select(Attempt.trial_id, Attempt.label).where(Attempt.trial_id.in_(some), Attempt.decides)
            for row in connection.execute(query):
                if row.label is not None and is_result(row.label):
                    found[row.trial_id] = row.label
    return found


def trials_with_prefix(store: Store, prefixes: Iterable[str]) -> dict[str, str]:
    """Trials with a result whose ids begin with one of the prefixes: the same request, found with other software."""
    found: dict[str, str] = {}
    with store.reading() as connection:
        for prefix in sorted(set(prefixes)):
            # A range, since LIKE reads the whole index: ids are hexadecimal, and g comes after all of their digits.
            within = (Attempt.trial_id >= prefix, Attempt.trial_id < f"{prefix}g")
            query = select(Attempt.trial_id, Attempt.label).where(*within, Attempt.decides)
            for row in connection.execute(query):
                if row.label is not None and is_result(row.label):
                    found[row.trial_id] = row.label
    return found


def new_plan(study: str, trials: list[PlannedRow], settings: dict[str, Any] | None = None) -> PlanRecord:
    """A plan made now."""
    return PlanRecord(study=study, created_at=time.time(), trials=trials, settings=settings or {})


def _trial(one: PlannedRow) -> dict[str, Any]:
    return trial_row(
        one.trial,
        one.config,
        trainer=one.trainer,
        world_size=one.world_size,
        repeat=one.repeat,
        target=one.target,
        steady_window=one.steady_window,
        train_iters=one.train_iters,
    )
