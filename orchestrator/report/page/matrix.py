"""The outcome matrix: recompute settings against whatever else a grid varied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.comparison import Comparison, Group, Line
from orchestrator.records.spec import ROLE_TRIAL
from orchestrator.report.figures.frontier import kind_of
from orchestrator.report.text import plain
from orchestrator.select.match import RECOMPUTE_FIELDS, flatten
from orchestrator.vocabulary.units import format_bytes

_MOST_FIELDS = 4
_LONGEST = 48


@dataclass(frozen=True)
class Cell:
    """What became of one candidate in one column; `kind` is one of `frontier.KINDS`."""

    kind: str
    label: str
    peak: str
    step: str


@dataclass(frozen=True)
class Matrix:
    """Candidates down, the rest of the grid across; None where a combination was not asked."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def matrix(comparison: Comparison, chosen: Sequence[Line]) -> Matrix | None:
    """The matrix of a comparison; None where only one thing was varied."""
    groups = comparison.groups
    if len(groups) < 2:
        return None
    taken = set(map(id, chosen))
    apart = distinctions(comparison)
    order = sorted(range(len(groups)), key=lambda place: (_natural(apart[place]), place))
    names = list(dict.fromkeys(line.text for group in groups for line in group.lines))
    rows = []
    for name in names:
        cells = []
        for group in (groups[place] for place in order):
            line = group.named.get(name)
            cells.append(None if line is None else _cell(line, id(line) in taken))
        rows.append((plain(name), tuple(cells)))
    return Matrix(tuple(apart[place] for place in order), tuple(rows))


def distinctions(comparison: Comparison) -> list[str]:
    """What sets each match key apart, in few words: what was asked differently, else what was found to differ."""
    groups = comparison.groups
    if len(groups) < 2:
        return ["" for _ in groups]
    asked = [_asked(group) for group in groups]
    fields = [path for path in dict.fromkeys(path for one in asked for path in one) if _differs(asked, path)]
    if fields:
        return [", ".join(f"{_leaf(path)}={_short(one.get(path))}" for path in fields[:_MOST_FIELDS]) for one in asked]
    found = [item for item in comparison.differences if item.field != "request"][:_MOST_FIELDS]
    if not found:
        return [group.digest for group in groups]
    return [
        ", ".join(f"{_leaf(item.field)}={_short(item.values[place])}" for item in found) for place in range(len(groups))
    ]


def _natural(text: str) -> list[tuple[float, str]]:
    """An order in which 2 comes before 16."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if place % 2 else (0.0, part) for place, part in enumerate(parts)]


def _asked(group: Group) -> Mapping[str, Any]:
    row = next((row for line in group.lines for row in line.runs if row.role == ROLE_TRIAL), group.first_row)
    if row.source.get("table"):
        return {"table": row.source["table"]}
    return {path: value for path, value in flatten(row.requested).items() if path not in RECOMPUTE_FIELDS}


def _differs(asked: Sequence[Mapping[str, Any]], path: str) -> bool:
    return any(one.get(path) != asked[0].get(path) for one in asked[1:])


def _leaf(path: str) -> str:
    return plain(path.rpartition(".")[2])


def _short(value: Any) -> str:
    text = "unset" if value is None else plain(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _cell(line: Line, is_chosen: bool) -> Cell:
    peak = line.peak.allocated if line.peak else None
    return Cell(
        kind=kind_of(line, line if is_chosen else None),
        label=plain(line.decided.outcome_text or line.label or "no outcome"),
        peak="" if peak is None else format_bytes(peak),
        step="" if line.step_ms is None else f"{line.step_ms:.1f} ms",
    )
