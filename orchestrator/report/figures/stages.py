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

Look = tuple[str, list[int], float]
"""Colour, dashes and width of a line."""
_ORDER = {stage.value: stage.code for stage in Stage}
SO_FAR = "run so far"
"""The run's maximum up to an iteration: known also where recording by stage paused."""
_LOOKS: dict[str, Look] = {
    "forward": ("var(--s1)", [1, 0], 8),
    "backward": ("var(--s2)", [1, 0], 4),
    "replay": ("var(--s3)", [6, 3], 2.5),
    "grad_sync": ("var(--s4)", [1, 0], 2),
    "optimizer_step": ("var(--s5)", [1, 0], 7),
    "optimizer_init": ("var(--s6)", [1, 0], 2),
    "evaluate": ("var(--s7)", [1, 0], 2),
    "between_steps": ("var(--s8)", [2, 4], 2),
    SO_FAR: (css("ink"), [2, 3], 1.5),
}
"""Those of one peak lie on each other: what is drawn first is wider, so that all are seen."""
_WHOLE = "datum.value % 1 ? '' : datum.label"
"""Between two iterations Vega marks a half too, whatever the smallest step."""
MOST_NUMBERED = 32
"""Ranks up to which every cell has its number."""


def look(stage: str) -> Look:
    """How a stage is drawn, in every chart and for every candidate."""
    return _LOOKS.get(stage) or (SERIES[_ORDER.get(stage, len(_ORDER)) % len(SERIES)], [4, 3], 2)


def all_looks() -> dict[str, Look]:
    """Of every stage, and of the run so far."""
    return {name: look(name) for name in (*_ORDER, SO_FAR)}


def in_order(stages: Iterable[str]) -> list[str]:
    """Stages as a run goes through them."""
    return sorted(set(stages), key=lambda name: (_ORDER.get(name, len(_ORDER)), name))


def scale_of(sizes: Iterable[int]) -> tuple[str, int]:
    """GB, or MB where all sizes are below one GB."""
    return ("GB", GB) if max(sizes, default=0) >= GB else ("MB", MB)


def heat_map(name: str, title: str, cells: Sequence[Cell], control: Sequence[Cell] = ()) -> Figure:
    """The largest allocated memory of every stage on every rank, from set-up to the end of the steady window.

    `control` are those of the control, to stand below.
    """
    known = with_control(cells, control)
    unit, size = scale_of(known.values())
    stages = in_order(stage for _, stage in known)
    ranks = list(dict.fromkeys(rank for rank, _ in known))
    values = [heat_cell(rank, plain(stage), peak / size) for (rank, stage), peak in known.items()]
    rows = tuple(
        (str(rank), *(ABSENT if (at := known.get((rank, stage))) is None else f"{at / size:.3f}" for stage in stages))
        for rank in ranks
    )
    columns = (Column("rank", right=True), *(Column(f"{plain(stage)} ({unit})", right=True) for stage in stages))
    spec = heat_map_spec([plain(stage) for stage in stages], len(ranks), unit, values)
    description = f"Peak allocated memory of {len(stages)} stages on {len(ranks)} ranks, in {unit}."
    return Figure(name, title, spec, Table("", columns, rows), description)


def with_control(cells: Sequence[Cell], control: Sequence[Cell]) -> dict[tuple[int | str, str], int]:
    """Bytes by row and stage: a row a rank, then the control's."""
    rows: dict[tuple[int | str, str], int] = {}
    rows |= {(cell.rank, cell.stage): cell.allocated for cell in sorted(cells, key=_rank)}
    rows |= {(f"{cell.rank}, control", cell.stage): cell.allocated for cell in sorted(control, key=_rank)}
    return rows


def _rank(cell: Cell) -> int:
    return cell.rank


def heat_cell(rank: int | str, stage: str, peak: float) -> dict[str, object]:
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
        "sort": None,
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
    looks = [look(stage) for stage in stages]
    return {
        "height": 260,
        "data": {"name": "cells", "values": values},
        "mark": {"type": "line", "point": {"size": 14, "filled": True}},
        "encoding": {
            "x": {
                "field": "iteration",
                "type": "quantitative",
                "title": "iteration",
                "axis": {"tickMinStep": 1, "grid": False, "format": "d", "labelExpr": _WHOLE},
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
                "legend": {"symbolType": "stroke", "symbolSize": 400},
                "scale": {"domain": stages, "range": [colour for colour, _, _ in looks]},
            },
            "strokeDash": {
                "field": "stage",
                "type": "nominal",
                "sort": stages,
                "title": None,
                "scale": {
                    "domain": stages,
                    "range": [dash for _, dash, _ in looks],
                },
            },
            "strokeWidth": {
                "field": "stage",
                "type": "nominal",
                "sort": stages,
                "title": None,
                "scale": {"type": "ordinal", "domain": stages, "range": [width for _, _, width in looks]},
            },
            "tooltip": [
                {"field": "iteration", "title": "iteration"},
                {"field": "stage", "title": "stage"},
                {"field": "peak", "title": f"peak ({unit})", "type": "quantitative", "format": ".3f"},
            ],
        },
    }


def _cell(size: int | None, unit: int) -> str:
    return ABSENT if size is None else f"{size / unit:.3f}"
