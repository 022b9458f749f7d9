"""Peak memory against step time: what passed, the Pareto front, the target, and what stopped, at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from orchestrator.analysis.comparison import Group, Line
from orchestrator.analysis.recommend import Recommendation
from orchestrator.report.compare import delta_text, group_title
from orchestrator.report.figures import placement
from orchestrator.report.figures.axes import FIRST_SLOT, SLOT, Axes, axes_of
from orchestrator.report.figures.figure import Figure
from orchestrator.report.figures.theme import css
from orchestrator.report.table import ABSENT, Column, Table
from orchestrator.report.text import plain
from orchestrator.vocabulary import REJECTED
from orchestrator.vocabulary.units import GB, MB

CHOSEN, CONTROL, PASSED, MEMORY, FAILED, REFUSED, UNKNOWN = (
    "recommended",
    "control",
    "passed",
    "out of memory",
    "failed",
    "rejected",
    "no outcome",
)
KINDS = (CHOSEN, CONTROL, PASSED, MEMORY, FAILED, REFUSED, UNKNOWN)
COLOURS = ("chosen", "control", "passed", "memory", "failed", "rejected", "rejected")
_FOREMOST = (CHOSEN, CONTROL)
_SHAPES = ("diamond", "square", "circle", "cross", "triangle-down", "triangle-up", "triangle-right")
_MOST_NAMED = 40
"""Marks up to which each is named where there is room; beyond, the choice, the control and the Pareto front are."""
_CLOSE = 0.05
"""Failures nearer than this share of the height stand beside each other."""


def kind_of(line: Line, chosen: Line | None = None) -> str:
    """What became of a candidate, in one of `KINDS`."""
    label = line.label or ""
    if line.passed and line.passed == len(line.runs):
        return CHOSEN if line is chosen else CONTROL if line.is_control else PASSED
    if label.startswith("OOM"):
        return MEMORY
    if label == REJECTED:
        return REFUSED
    if line.step_ms is not None and not label:
        return CONTROL if line.is_control else PASSED
    return FAILED if label else UNKNOWN


def unit_of(lines: Sequence[Line]) -> tuple[str, int]:
    """GB, or MB where every peak is smaller than one GB."""
    largest = max((line.peak.allocated or 0 for line in lines if line.peak), default=0)
    return ("GB", GB) if largest >= GB else ("MB", MB)


def frontier(answer: Recommendation, name: str = "frontier") -> Figure:
    """The chart of one match key."""
    group = answer.group
    unit, size = unit_of(group.lines)
    points = _points(group, answer, size)
    front = [
        {"peak": (option.peak or 0) / size, "step": option.step_ms, "name": plain(option.name)}
        for option in answer.pick.pareto
    ]
    limit = None if answer.pick.limit is None else answer.pick.limit / size
    timed = [point for point in points if point["step"] is not None]
    stopped = [point for point in points if point["step"] is None]
    kinds = [kind for kind in KINDS if any(point["kind"] == kind for point in points)]
    axes = axes_of(points, limit, unit)
    layers = [
        *([_front(front, axes)] if len(front) > 1 else []),
        *(_target(limit, unit, axes) if limit is not None else []),
        *(_edge(axes) if stopped and timed else []),
        *_whiskers(timed, axes),
        *([_marks(timed, unit, kinds, axes)] if timed else []),
        *_names(timed, front, limit, axes),
        _stopped([point for point in stopped if point["peak"] is not None], unit, kinds, axes),
        _stopped([point for point in stopped if point["peak"] is None], unit, kinds, axes),
    ]
    spec = {
        "height": axes.height,
        "params": [{"name": "query", "value": ""}, {"name": "kind", "value": ""}],
        "layer": [layer for layer in layers if layer is not None],
        "resolve": {"scale": {"color": "shared", "shape": "shared"}},
    }
    title = f"Peak memory against step time · {group_title(group)}"
    table = Table("", _columns(unit), tuple(_row(point) for point in points))
    description = (
        f"{len(timed)} of {len(points)} candidates by step time in milliseconds and peak allocated memory in {unit}; "
        "what has no step time stands at the right edge."
    )
    return Figure(name, title, spec, table, description)


def _columns(unit: str) -> tuple[Column, ...]:
    return (
        Column("candidate", wrap=True),
        Column("outcome"),
        Column("step (ms)", right=True),
        Column("noise band, ± (ms)", right=True),
        Column(f"peak allocated ({unit})", right=True),
        Column("on rank", right=True),
        Column("in stage"),
        Column("label"),
        Column("Pareto front"),
    )


def _points(group: Group, answer: Recommendation, size: int) -> list[dict[str, Any]]:
    front = {option.name for option in answer.pick.pareto}
    reference = group.control.step_ms if group.control is not None else None
    points = []
    for line in group.lines:
        band = line.time_delta.band if line.time_delta is not None else None
        noise = band.half_width * reference if band is not None and reference and line.step_ms is not None else None
        peak = line.peak.allocated if line.peak else None
        points.append(
            {
                "name": plain(line.text),
                "kind": kind_of(line, answer.chosen),
                "step": line.step_ms,
                "noise": noise,
                "low": None if noise is None else (line.step_ms or 0.0) - noise,
                "high": None if noise is None else (line.step_ms or 0.0) + noise,
                "peak": None if peak is None else round(peak / size, 6),
                "rank": None if line.peak is None else line.peak.rank,
                "stage": None if line.peak is None or line.peak.stage is None else str(line.peak.stage),
                "label": plain(line.decided.outcome_text or line.label or "no outcome"),
                "time": "control" if line.is_control else delta_text(line.time_delta),
                "memory": "control" if line.is_control else delta_text(line.peak_delta),
                "front": line.text in front,
            }
        )
    _place_side_by_side([point for point in points if point["step"] is None])
    return points


def _place_side_by_side(stopped: list[dict[str, Any]]) -> None:
    """Give failures of about the same peak a `slot` each, so that none hides another."""
    peaks = [point["peak"] for point in stopped if point["peak"] is not None]
    span = max(peaks, default=0.0) or 1.0
    placed: list[dict[str, Any]] = []
    for point in sorted(stopped, key=lambda one: (one["peak"] is None, one["peak"] or 0.0, one["name"])):
        taken = {
            other["slot"]
            for other in placed
            if (other["peak"] is None) == (point["peak"] is None)
            and abs((other["peak"] or 0.0) - (point["peak"] or 0.0)) < _CLOSE * span
        }
        point["slot"] = next(slot for slot in range(len(placed) + 1) if slot not in taken)
        placed.append(point)


def _row(point: dict[str, Any]) -> tuple[str, ...]:
    return (
        point["name"],
        point["kind"],
        ABSENT if point["step"] is None else f"{point['step']:.2f}",
        ABSENT if not point["noise"] else f"{point['noise']:.2f}",
        ABSENT if point["peak"] is None else f"{point['peak']:.3f}",
        plain(point["rank"]),
        plain(point["stage"]),
        point["label"],
        "yes" if point["front"] else "no",
    )


def _tooltip(unit: str) -> list[dict[str, Any]]:
    return [
        {"field": "name", "title": "candidate"},
        {"field": "label", "title": "label"},
        {"field": "step", "title": "step (ms)", "type": "quantitative", "format": ".2f"},
        {"field": "noise", "title": "noise band, ± (ms)", "type": "quantitative", "format": ".0f"},
        {"field": "peak", "title": f"peak ({unit})", "type": "quantitative", "format": ".3f"},
        {"field": "rank", "title": "on rank", "type": "ordinal"},
        {"field": "stage", "title": "in stage"},
        {"field": "time", "title": "time vs []"},
        {"field": "memory", "title": "allocated vs []"},
    ]


_FILTER = {
    "filter": "(query == '' || indexof(lower(datum.name), query) >= 0) && (kind == '' || datum.kind == kind)",
}


def _looks(unit: str, kinds: list[str]) -> dict[str, Any]:
    colours = [css(COLOURS[KINDS.index(kind)]) for kind in kinds]
    shapes = [_SHAPES[KINDS.index(kind)] for kind in kinds]
    return {
        "color": {
            "field": "kind",
            "type": "nominal",
            "title": None,
            "scale": {"domain": kinds, "range": colours},
            "legend": {"symbolSize": 90},
        },
        "shape": {
            "field": "kind",
            "type": "nominal",
            "title": None,
            "scale": {"domain": kinds, "range": shapes},
        },
        "tooltip": _tooltip(unit),
        "description": {"field": "name"},
    }


def _marks(points: list[dict[str, Any]], unit: str, kinds: list[str], axes: Axes) -> dict[str, Any]:
    return {
        "name": "candidates",
        "data": {"values": points},
        "transform": [_FILTER],
        "mark": {"type": "point", "filled": True, "size": 120, "opacity": 0.95},
        "encoding": {"x": axes.x, "y": axes.y, **_looks(unit, kinds)},
    }


def _whiskers(points: list[dict[str, Any]], axes: Axes) -> list[dict[str, Any]]:
    """The noise bands of the step times."""
    values = [point for point in points if point["noise"] and point["peak"] is not None]
    if not values:
        return []
    return [
        {
            "name": "noise",
            "data": {"values": values},
            "transform": [_FILTER],
            "mark": {"type": "bar", "height": 1.5, "color": css("muted"), "opacity": 0.45},
            "encoding": {"x": {**axes.x, "field": "low"}, "x2": {"field": "high"}, "y": axes.y},
        }
    ]


def _names(
    points: list[dict[str, Any]], front: list[dict[str, Any]], limit: float | None, axes: Axes
) -> list[dict[str, Any]]:
    """Names where there is room for them; every mark has its own under the mouse and in the table."""
    measured = [point for point in points if point["peak"] is not None]
    width = placement.NARROWEST
    marks = [
        placement.Mark(axes.right(one["step"], width), axes.down(one["peak"]), one["name"], one["kind"] in _FOREMOST)
        for one in measured
    ]
    asked = [
        mark
        for mark, point in zip(marks, measured, strict=True)
        if len(measured) <= _MOST_NAMED or mark.must or point["front"]
    ]
    corners = [(axes.right(one["step"], width), axes.down(one["peak"])) for one in front]
    lines = [(x, y, later, y) for (x, y), (later, _) in pairwise(sorted(corners))]
    lines += [(later, y, later, below) for (_, y), (later, below) in pairwise(sorted(corners))]
    lines += [
        (axes.right(one["low"], width), axes.down(one["peak"]), axes.right(one["high"], width), axes.down(one["peak"]))
        for one in measured
        if one["noise"]
    ]
    taken = []
    if limit is not None:
        lines.append((0.0, axes.down(limit), 1.0, axes.down(limit)))
        taken.append((0.0, axes.down(limit) * axes.height - 18, 130.0, axes.down(limit) * axes.height))
    spots = placement.place(marks, asked, axes.height, lines=lines, taken=taken)
    by_spot: dict[tuple[placement.Spot, bool], list[dict[str, Any]]] = {}
    for point in measured:
        spot = spots.get(point["name"])
        if spot is not None:
            by_spot.setdefault((spot, point["kind"] in _FOREMOST), []).append(point)
    return [_text(spot, foremost, chosen, axes) for (spot, foremost), chosen in by_spot.items()]


def _text(spot: placement.Spot, foremost: bool, points: list[dict[str, Any]], axes: Axes) -> dict[str, Any]:
    shown = {} if foremost else {"opacity": {"expr": f"width < {placement.NARROWEST} ? 0 : 1"}}
    return {
        "data": {"values": points},
        "transform": [_FILTER],
        "mark": {
            "type": "text",
            "align": spot.align,
            "baseline": "middle",
            "dx": spot.dx,
            "dy": spot.dy,
            "limit": placement.LONGEST,
            "fontSize": placement.FONT,
            "color": css("ink"),
            **shown,
        },
        "encoding": {"x": axes.x, "y": axes.y, "text": {"field": "name"}},
    }


def _stopped(points: list[dict[str, Any]], unit: str, kinds: list[str], axes: Axes) -> dict[str, Any] | None:
    """What has no step time, at the right edge at the peak that it had reached; at the bottom where none is known."""
    if not points:
        return None
    at = axes.y if points[0]["peak"] is not None else {"value": "height"}
    return {
        "name": "stopped" if points[0]["peak"] is not None else "without_peak",
        "data": {"values": points},
        "transform": [_FILTER],
        "mark": {
            "type": "point",
            "filled": True,
            "size": 110,
            "xOffset": {"expr": f"-{FIRST_SLOT} - {SLOT} * datum.slot"},
            "yOffset": 0 if points[0]["peak"] is not None else -10,
        },
        "encoding": {"x": {"value": "width"}, "y": at, **_looks(unit, kinds)},
    }


def _front(front: list[dict[str, Any]], axes: Axes) -> dict[str, Any]:
    return {
        "data": {"values": front},
        "mark": {
            "type": "line",
            "interpolate": "step-after",
            "strokeWidth": 1.5,
            "color": css("passed"),
            "opacity": 0.6,
            "strokeDash": [2, 3],
        },
        "encoding": {
            "x": axes.x,
            "y": axes.y,
            "order": {"field": "step", "type": "quantitative"},
        },
    }


def _target(limit: float, unit: str, axes: Axes) -> list[dict[str, Any]]:
    values = {"values": [{"peak": limit, "text": f"target {limit:.3f} {unit}"}]}
    y = axes.y
    return [
        {"data": values, "mark": {"type": "rule", "color": css("target"), "strokeWidth": 1.5}, "encoding": {"y": y}},
        {
            "data": values,
            "mark": {"type": "text", "align": "left", "dx": 4, "dy": -9, "color": css("target")},
            "encoding": {"y": y, "x": {"value": 0}, "text": {"field": "text"}},
        },
    ]


def _edge(axes: Axes) -> list[dict[str, Any]]:
    """The line between what has a step time and what has none."""
    at = {"value": {"expr": f"width - {axes.strip}"}}
    values = {"values": [{"text": "no step time"}]}
    return [
        {"data": values, "mark": {"type": "rule", "color": css("line")}, "encoding": {"x": at}},
        {
            "data": values,
            "mark": {
                "type": "text",
                "align": "right",
                "baseline": "bottom",
                "dy": -3,
                "fontSize": placement.FONT,
                "color": css("muted"),
            },
            "encoding": {"x": {"value": "width"}, "y": {"value": 0}, "text": {"field": "text"}},
        },
    ]
