"""Memory by rank and stage, and by stage through the iterations of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.records.rank import IterationRecord
from orchestrator.report.figures.figure import Figure
from orchestrator.report.figures.theme import SERIES, css
from orchestrator.report.table import ABSENT, Column, Table
from orchestrator.report.text import plain
from orchestrator.store.memory_map import Cell
from orchestrator.vocabulary import Stage
from orchestrator.vocabulary.units import GB, MB

_ORDER = {stage.value: stage.code for stage in Stage}
SO_FAR = "run so far"
"""The run's maximum up to an iteration: known also where recording by stage paused."""
MOST_NUMBERED = 32
"""Ranks up to which every cell has its number."""


def in_order(stages: Iterable[str]) -> list[str]:
    """Stages as a run goes through them."""
    return sorted(set(stages), key=lambda name: (_ORDER.get(name, len(_ORDER)), name))


def scale_of(sizes: Iterable[int]) -> tuple[str, int]:
    """GB, or MB where all sizes are below one GB."""
    return ("GB", GB) if max(sizes, default=0) >= GB else ("MB", MB)


def heat_map(name: str, title: str, cells: Sequence[Cell]) -> Figure:
    """The largest allocated memory of every stage on every rank, from set-up to the end of the steady window."""
    unit, size = scale_of(cell.allocated for cell in cells)
    stages = in_order(cell.stage for cell in cells)
    ranks = sorted({cell.rank for cell in cells})
    values = [heat_cell(cell.rank, plain(cell.stage), cell.allocated / size) for cell in cells]
    known = {(cell.rank, cell.stage): cell.allocated for cell in cells}
    rows = tuple(
        (str(rank), *(ABSENT if (at := known.get((rank, stage))) is None else f"{at / size:.3f}" for stage in stages))
        for rank in ranks
    )
    columns = (Column("rank", right=True), *(Column(f"{plain(stage)} ({unit})", right=True) for stage in stages))
    spec = heat_map_spec([plain(stage) for stage in stages], len(ranks), unit, values)
    description = f"Peak allocated memory of {len(stages)} stages on {len(ranks)} ranks, in {unit}."
    return Figure(name, title, spec, Table("", columns, rows), description)


def heat_cell(rank: int, stage: str, peak: float) -> dict[str, object]:
    """One cell as the chart wants it, with its number as it is printed in it."""
    return {"rank": rank, "stage": stage, "peak": peak, "shown": f"{peak:.1f}" if peak >= 0.05 else "~0"}


def heat_map_spec(stages: list[str], ranks: int, unit: str, values: list[dict[str, object]]) -> dict[str, object]:
    """The specification: stages from left to right, ranks from top to bottom."""
    step = 26 if ranks <= 8 else 20 if ranks <= MOST_NUMBERED else max(3, 640 // ranks)
    largest = max((float(str(value["peak"])) for value in values), default=1.0)
    x = {
        "field": "stage",
        "type": "nominal",
        "sort": stages,
        "title": None,
        "axis": {"labelAngle": -40, "orient": "top", "domain": False, "ticks": False},
    }
    y = {
        "field": "rank",
        "type": "ordinal",
        "title": "rank",
        "axis": {"domain": False, "ticks": False, "labelOverlap": True},
    }
    cells = {
        "mark": {"type": "rect", "stroke": css("surface"), "strokeWidth": 1 if step > 6 else 0},
        "encoding": {
            "color": {
                "field": "peak",
                "type": "quantitative",
                "title": f"peak allocated ({unit})",
                "scale": {"scheme": "viridis", "domain": [0, largest]},
                "legend": {"gradientLength": 160, "gradientThickness": 10, "format": ".3~g", "columns": 1},
            },
            "tooltip": [
                {"field": "rank", "title": "rank"},
                {"field": "stage", "title": "stage"},
                {"field": "peak", "title": f"peak ({unit})", "type": "quantitative", "format": ".3f"},
            ],
        },
    }
    numbers = {
        "mark": {"type": "text", "fontSize": {"expr": "width < 520 ? 0 : 10"}},
        "encoding": {
            "text": {"field": "shown"},
            "color": {"condition": {"test": f"datum.peak > {largest * 0.6}", "value": "#111"}, "value": "#fff"},
        },
    }
    return {
        "height": step * max(ranks, 1),
        "data": {"name": "cells", "values": values},
        "encoding": {"x": x, "y": y},
        "layer": [cells, numbers] if ranks <= MOST_NUMBERED else [cells],
    }


def history(name: str, title: str, iterations: Sequence[IterationRecord]) -> Figure:
    """The largest allocated memory of each stage in every iteration of one rank, and the run's maximum so far."""
    known = sizes_of(iterations)
    unit, size = scale_of(known.values())
    stages = in_order(stage for _, stage in known)
    rows = tuple(
        (str(one.number), *(_cell(known.get((one.number, stage)), size) for stage in stages)) for one in iterations
    )
    columns = (Column("iteration", right=True), *(Column(f"{stage} ({unit})", right=True) for stage in stages))
    values: list[dict[str, object]] = [
        {"iteration": number, "stage": stage, "peak": peak / size} for (number, stage), peak in known.items()
    ]
    description = f"Peak allocated memory of {len(stages)} stages through {len(iterations)} iterations, in {unit}."
    return Figure(name, title, history_spec(stages, unit, values), Table("", columns, rows), description)


def sizes_of(iterations: Sequence[IterationRecord]) -> dict[tuple[int, str], int]:
    """Peaks in bytes by iteration and stage, and by iteration and `SO_FAR`."""
    known = {
        (one.number, str(row.stage)): row.peak_allocated
        for one in iterations
        for row in one.stages
        if row.peak_allocated is not None
    }
    return known | {(one.number, SO_FAR): one.peak_allocated for one in iterations if one.peak_allocated is not None}


def history_spec(stages: list[str], unit: str, values: list[dict[str, object]]) -> dict[str, object]:
    """The specification: a line a stage."""
    return {
        "height": 260,
        "data": {"name": "cells", "values": values},
        "mark": {"type": "line", "point": {"size": 36, "filled": True}, "strokeWidth": 2},
        "encoding": {
            "x": {
                "field": "iteration",
                "type": "quantitative",
                "title": "iteration",
                "axis": {"tickMinStep": 1, "grid": False, "format": "d"},
                "scale": {"zero": False, "nice": False, "padding": 10},
            },
            "y": {
                "field": "peak",
                "type": "quantitative",
                "title": f"peak allocated ({unit})",
                "scale": {"zero": False},
            },
            "color": {
                "field": "stage",
                "type": "nominal",
                "title": None,
                "sort": stages,
                "scale": {"domain": stages, "range": [_colour(place, stage) for place, stage in enumerate(stages)]},
            },
            "strokeDash": {
                "field": "stage",
                "type": "nominal",
                "sort": stages,
                "title": None,
                "scale": {
                    "domain": stages,
                    "range": [_dash(place, stage) for place, stage in enumerate(stages)],
                },
            },
            "tooltip": [
                {"field": "iteration", "title": "iteration"},
                {"field": "stage", "title": "stage"},
                {"field": "peak", "title": f"peak ({unit})", "type": "quantitative", "format": ".3f"},
            ],
        },
    }


def _colour(place: int, stage: str) -> str:
    return css("muted") if stage == SO_FAR else SERIES[place % len(SERIES)]


def _dash(place: int, stage: str) -> list[int]:
    return [2, 3] if stage == SO_FAR else [1, 0] if place < len(SERIES) else [4, 3]


def _cell(size: int | None, unit: int) -> str:
    return ABSENT if size is None else f"{size / unit:.3f}"
