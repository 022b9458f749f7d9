"""Which software trials ran with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select

from orchestrator.store.models import Attempt, Software
from orchestrator.store.write import pieces


def software_sets(connection: Connection) -> dict[str, dict[str, Any]]:
    """Every set of versions and commits, by its hash."""
    return {row.hash: row.content for row in connection.execute(select(Software.hash, Software.content))}


def trials_of_software(connection: Connection, hashes: Iterable[str]) -> list[str]:
    """The trials with an attempt that ran with one of those sets."""
    found: set[str] = set()
    for some in pieces(sorted(set(hashes))):
        query = select(Attempt.trial_id).where(Attempt.software_hash.in_(some)).distinct()
        found |= set(connection.execute(query).scalars())
    return sorted(found)
