"""Puts published tables into the database, as studies of their own whose rows say where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.rows import ORIGIN_PUBLISHED, Row
from orchestrator.analysis.stored import PUBLISHED
from orchestrator.records.jsonfile import encode

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from orchestrator.store.database import Store


def import_rows(store: Store, rows: Sequence[Row]) -> tuple[int, int]:
    """Write published rows; how many were new, and how many known. The same rows again change nothing.

    Raises:
        EnvironmentFailure: the database cannot be written.
    """
    from sqlalchemy import select, update

    from orchestrator.store.models import Attempt, Trial
    from orchestrator.store.write import add_members, insert_missing, study_id

    known = 0
    with store.writing() as connection:
        for row in rows:
            trial, attempt = _trial_row(row), _attempt_row(connection, row)
            known += connection.execute(select(Trial.id).where(Trial.id == row.trial)).first() is not None
            insert_missing(connection, Trial, [trial])
            kept = {name: value for name, value in trial.items() if name not in ("id", "first_seen")}
            connection.execute(update(Trial).where(Trial.id == row.trial).values(**kept))
            insert_missing(connection, Attempt, [attempt])
            connection.execute(update(Attempt).where(Attempt.uid == attempt["uid"]).values(**attempt))
            add_members(connection, study_id(connection, row.study), [(row.trial, row.name, row.role)])
    return len(rows) - known, known


def _trial_row(row: Row) -> dict[str, Any]:
    from orchestrator.store.requested import trial_row

    return trial_row(
        row.trial,
        dict(row.requested),
        trainer="bridge",
        world_size=row.world_size or 0,
        origin=ORIGIN_PUBLISHED,
        target={
            PUBLISHED: {
                "outcome": row.outcome_text,
                "peak_scope": encode(row.peak_scope),
                "source": encode(row.source),
            }
        },
        steady_window=row.steady_window,
        train_iters=row.train_iters,
    )


def _attempt_row(connection: Connection, row: Row) -> dict[str, Any]:
    from orchestrator.store.models import STATE_ENDED
    from orchestrator.store.write import study_id

    peak = row.peak
    return {
        "uid": hashlib.sha256(f"published\0{row.trial}".encode()).hexdigest()[:32],
        "trial_id": row.trial,
        "number": row.attempt,
        "study_id": study_id(connection, row.study),
        "name": row.name,
        "role": row.role,
        "run_dir": "",
        "state": STATE_ENDED,
        "decides": True,
        "label": row.label,
        "cause": row.cause,
        "rank": row.rank,
        "iteration": row.last_iteration,
        "evidence": list(row.evidence),
        "ranks_recorded": 0,
        "device_kind": row.device_kind,
        "device_name": row.device_name,
        "peak_allocated": peak.allocated if peak else None,
        "peak_allocated_rank": peak.rank if peak else None,
        "step_ms": row.step_ms,
        "tflops_per_gpu": row.tflops_per_gpu,
    }
