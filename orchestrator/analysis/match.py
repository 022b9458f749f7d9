"""Which rows may be compared: match keys of rows, and where a row that died early belongs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.analysis.rows import ORIGIN_PUBLISHED, Row
from orchestrator.plan.candidate import normalise
from orchestrator.select.match import MatchKey, Measured, digest, kept, key_of
from orchestrator.select.match import match_key as measured_key


def match_key(row: Row) -> MatchKey:
    """The key of a row: its effective configuration, software, hardware type and environment.

    A published row matches only rows of its own table, whatever it says of itself. A row without an effective
    configuration gets a key of its request, which equals no effective key: `join` places it.
    """
    if row.origin == ORIGIN_PUBLISHED:
        return key_of({"published": row.source.get("table", row.study), "revisions": row.source.get("revisions")})
    if row.effective is None:
        return key_of({"request": request_fields(row)}, by_request=True)
    return measured_key(
        Measured(
            effective=row.effective,
            software=row.software,
            environment=row.environment,
            device_kind=row.device_kind,
            device_name=row.device_name,
            world_size=row.world_size,
            memory_limit=row.memory_limit,
            steady_window=row.steady_window,
            requested=row.requested,
        )
    )


def request_fields(row: Row) -> dict[str, Any]:
    """The requested configuration without the fields that a key leaves out: two rows with equal ones asked alike."""
    return kept(normalise(row.requested))


def join(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by match key. Rows without an effective configuration join the key of rows that asked for the same.

    Where several keys did (the software changed in between), the one that shared their job, else the latest.
    """
    keys = {id(row): match_key(row) for row in rows}
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if not keys[id(row)].by_request:
            groups.setdefault(keys[id(row)].digest, []).append(row)
    asked: dict[str, list[tuple[str, Row]]] = {}
    for key, members in groups.items():
        for member in members:
            if member.origin != ORIGIN_PUBLISHED:
                asked.setdefault(digest(request_fields(member)), []).append((key, member))
    for row in rows:
        if keys[id(row)].by_request:
            alike = asked.get(digest(request_fields(row)), [])
            placed = [(_nearness(member, row), key) for key, member in alike if _same_surroundings(member, row)]
            nearest = max(placed, default=None)
            groups.setdefault(nearest[1] if nearest else keys[id(row)].digest, []).append(row)
    return groups


def _same_surroundings(member: Row, row: Row) -> bool:
    """Environment and memory limit are the job's, and not part of a request; a row without attempt has none yet."""
    if row.attempt is None:
        return True
    return dict(member.environment) == dict(row.environment) and member.memory_limit == row.memory_limit


def _nearness(member: Row, row: Row) -> tuple[bool, float, str]:
    return (member.batch is not None and member.batch == row.batch, member.started_at or 0.0, member.trial)
