"""Predicted against measured peaks."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.predicted import Predicted
from orchestrator.report.compare import percent
from orchestrator.report.figures.figure import Figure
from orchestrator.report.figures.stages import scale_of
from orchestrator.report.figures.theme import css
from orchestrator.report.table import ABSENT, Column, Table
from orchestrator.report.text import plain

_MOST = 40
"""Candidates that are drawn; the table has all."""


def forecast(name: str, title: str, found: Sequence[Predicted]) -> Figure:
    """The predicted range of each candidate's peak, and what was measured."""
    known = [one for one in found if one.range is not None]
    unit, size = scale_of(one.range.high for one in known if one.range)
    values = [
        {
            "name": plain(one.line.text),
            "low": one.range.low / size,
            "high": one.range.high / size,
            "expected": one.range.expected / size,
            "measured": None if one.measured is None else one.measured / size,
            "stage": one.stage,
        }
        for one in known[:_MOST]
        if one.range
    ]
    columns = (
        Column("candidate", wrap=True),
        Column(f"predicted ({unit})", right=True),
        Column(f"between ({unit})", right=True),
        Column("in stage"),
        Column(f"measured ({unit})", right=True),
        Column("predicted vs measured", right=True),
    )
    y = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 160}}
    x = {
        "type": "quantitative",
        "title": f"peak allocated, hottest rank ({unit})",
        "scale": {"zero": False},
        "axis": {"tickCount": {"expr": "ceil(width / 80)"}},
    }
    tooltip = [
        {"field": "name", "title": "candidate"},
        *(
            {"field": field, "title": f"{field} ({unit})", "type": "quantitative", "format": ".3f"}
            for field in ("low", "expected", "high", "measured")
        ),
    ]
    measured = {
        "mark": {"type": "point", "filled": True, "size": 80, "color": css("passed")},
        "encoding": {"x": {"field": "measured", **x}},
    }
    spec = {
        "height": 26 * max(len(values), 1),
        "data": {"values": values},
        "encoding": {"y": y, "tooltip": tooltip},
        "layer": [
            {
                "mark": {"type": "bar", "height": 6, "color": css("line")},
                "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "tick", "thickness": 2, "color": css("muted"), "height": 14},
                "encoding": {"x": {"field": "expected", **x}},
            },
            *([measured] if any(value["measured"] is not None for value in values) else []),
        ],
    }
    rows = tuple(_row(one, size) for one in found)
    description = f"Predicted range and measured peak of {len(values)} candidates, in {unit}."
    return Figure(name, title, spec, Table("", columns, rows), description)


def _row(one: Predicted, size: int) -> tuple[str, ...]:
    measured = ABSENT if one.measured is None else f"{one.measured / size:.3f}"
    if one.range is None:
        return (plain(one.line.text), ABSENT, plain(one.problem), ABSENT, measured, ABSENT)
    return (
        plain(one.line.text),
        f"{one.range.expected / size:.3f}",
        f"{one.range.low / size:.3f} to {one.range.high / size:.3f}",
        plain(one.stage),
        measured,
        ABSENT if one.error is None else percent(one.error),
    )
