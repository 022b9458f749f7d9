"""Rows of equal fields, turned into columns: the stages and iterations that most of a rank's record consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Turned:
    """Columns by field, each with the types of its values, and how many rows there are."""

    columns: dict[str, tuple[Any, ...]]
    kinds: dict[str, set[type]]
    count: int


@dataclass(frozen=True)
class Tables:
    """The three tables of a record as its file has them. One that is None has rows of unlike fields, or no list."""

    stages: Turned | None
    iterations: Turned | None
    """With the number of its stages in place of each iteration's own list."""
    of_iterations: Turned | None
    """The stages of all iterations, one iteration after the other."""
    counts: tuple[int, ...]


def turned(rows: Sequence[Any]) -> Turned | None:
    """Rows as columns; None where they do not all have the same fields, or fewer than two."""
    try:
        keys = list(rows[0]) if rows else []
        if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(keys)} or len(keys) < 2:
            return None
        columns = dict(zip(keys, zip(*map(itemgetter(*keys), rows), strict=True), strict=True))
    except (TypeError, KeyError, AttributeError):
        return None
    return Turned(columns, {key: set(map(type, column)) for key, column in columns.items()}, len(rows))


def tables_of(record: Row) -> Tables:
    """The tables of a decoded record file."""
    stages, iterations = record.get("stages"), record.get("iterations")
    whole = turned(iterations) if isinstance(iterations, list) else None
    if whole is None or whole.kinds.get("stages") != {list}:
        return Tables(turned(stages) if isinstance(stages, list) else None, None, None, ())
    lists = whole.columns["stages"]
    counts = tuple(map(len, lists))
    counted = replace(whole, columns={**whole.columns, "stages": counts}, kinds={**whole.kinds, "stages": {int}})
    return Tables(
        turned(stages) if isinstance(stages, list) else None, counted, turned(list(chain.from_iterable(lists))), counts
    )
