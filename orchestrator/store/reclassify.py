"""Applies this release's rules to evidence that was collected before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from orchestrator.records.jsonfile import FormatError, decode
from orchestrator.records.spec import AttemptRecord, TrialSpec
from orchestrator.store.database import Store
from orchestrator.store.detail import rank_records
from orchestrator.store.models import STATE_ENDED, Attempt
from orchestrator.store.prepare import judge, outcome_columns
from orchestrator.store.write import mark_deciding, table_of

_ATTEMPTS_A_TRANSACTION = 50


@dataclass(frozen=True)
class Change:
    """An attempt whose label is another now."""

    trial: str
    attempt: str
    before: str | None
    after: str | None


@dataclass
class Reclassified:
    """What applying the rules again brought."""

    examined: int = 0
    changed: list[Change] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Attempts whose evidence a newer release stored, as `TRIAL/ATTEMPT`."""


def reclassify(store: Store) -> Reclassified:
    """Decide every ended attempt again from its raw evidence.

    Raises:
        EnvironmentFailure: the database is locked, full, ...
    """
    done = Reclassified()
    with store.reading() as connection:
        query = select(Attempt.id).where(Attempt.state == STATE_ENDED, Attempt.record.is_not(None)).order_by(Attempt.id)
        ids = list(connection.execute(query).scalars())
    for at in range(0, len(ids), _ATTEMPTS_A_TRANSACTION):
        with store.writing() as connection:
            _decide_again(connection, ids[at : at + _ATTEMPTS_A_TRANSACTION], done)
    return done


def _decide_again(connection: Connection, ids: list[int], done: Reclassified) -> None:
    columns = (Attempt.id, Attempt.trial_id, Attempt.number, Attempt.label, Attempt.record, Attempt.spec)
    changes: list[dict[str, Any]] = []
    trials: set[str] = set()
    for row in connection.execute(select(*columns).where(Attempt.id.in_(ids))).all():
        done.examined += 1
        try:
            attempt = decode(AttemptRecord, row.record)
            spec = decode(TrialSpec, row.spec | {"config": {}}) if row.spec else None
            ranks = rank_records(connection, row.id)
        except FormatError:
            done.unreadable.append(f"{row.trial_id}/{row.number}")
            continue
        derived = outcome_columns(judge(attempt, spec, ranks), ended=True)
        changes.append({"key": row.id, **{f"new_{name}": value for name, value in derived.items()}})
        if derived["label"] != row.label:
            done.changed.append(Change(row.trial_id, row.number, row.label, derived["label"]))
            trials.add(row.trial_id)
    if changes:
        names = [name.removeprefix("new_") for name in changes[0] if name != "key"]
        table = table_of(Attempt)
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
        connection.execute(update(table).where(table.c.id == bindparam("key")).values(values), changes)
    mark_deciding(connection, trials)
