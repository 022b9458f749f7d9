"""Peak memory against step time: what passed, the Pareto front, the target, and what stopped, at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.analysis.comparison import Group, Line
from orchestrator.analysis.recommend import Recommendation
from orchestrator.report.compare import delta_text, group_title
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
_SHAPES = ("diamond", "square", "circle", "cross", "triangle-down", "triangle-up", "triangle-right")
_HEIGHT, _HEIGHT_WITHOUT_TIMES = 340, 200
_MOST_NAMED = 12
_LINES = (-10, 13, -23, 26)
"""Pixels from a mark to its name: names of near marks take turns."""
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
    kinds = [kind for kind in KINDS if any(point["kind"] == kind for point in points)]
    layers = [
        *([_front(front)] if len(front) > 1 else []),
        *(_target(limit, unit) if limit is not None else []),
        _edge_line(),
        *([_marks(timed, unit, kinds)] if timed else []),
        *_names(timed, unit),
        _stopped([point for point in points if point["step"] is None and point["peak"] is not None], unit, kinds),
        _stopped([point for point in points if point["step"] is None and point["peak"] is None], unit, kinds),
    ]
    spec = {
        "height": _HEIGHT if timed else _HEIGHT_WITHOUT_TIMES,
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
        Column(f"peak allocated ({unit})", right=True),
        Column("on rank", right=True),
        Column("in stage"),
        Column("label"),
        Column("Pareto front"),
    )


def _points(group: Group, answer: Recommendation, size: int) -> list[dict[str, Any]]:
    front = {option.name for option in answer.pick.pareto}
    points = []
    for line in group.lines:
        peak = line.peak.allocated if line.peak else None
        points.append(
            {
                "name": plain(line.text),
                "kind": kind_of(line, answer.chosen),
                "step": line.step_ms,
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
        ABSENT if point["peak"] is None else f"{point['peak']:.3f}",
        plain(point["rank"]),
        plain(point["stage"]),
        point["label"],
        "yes" if point["front"] else "no",
    )


def _y(unit: str) -> dict[str, Any]:
    return {
        "field": "peak",
        "type": "quantitative",
        "title": f"peak allocated, hottest rank ({unit})",
        "scale": {"zero": False, "padding": 24},
    }


def _x() -> dict[str, Any]:
    return {
        "field": "step",
        "type": "quantitative",
        "title": "step time (ms)",
        "scale": {"zero": False, "padding": 40},
    }


def _tooltip(unit: str) -> list[dict[str, Any]]:
    return [
        {"field": "name", "title": "candidate"},
        {"field": "label", "title": "label"},
        {"field": "step", "title": "step (ms)", "type": "quantitative", "format": ".2f"},
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


def _marks(points: list[dict[str, Any]], unit: str, kinds: list[str]) -> dict[str, Any]:
    return {
        "name": "candidates",
        "data": {"values": points},
        "transform": [_FILTER],
        "mark": {"type": "point", "filled": True, "size": 120, "opacity": 0.95},
        "encoding": {"x": _x(), "y": _y(unit), **_looks(unit, kinds)},
    }


def _names(points: list[dict[str, Any]], unit: str) -> list[dict[str, Any]]:
    """Names of the few that matter; all, where there are few."""
    shown = points if len(points) <= _MOST_NAMED else [point for point in points if point["kind"] in (CHOSEN, CONTROL)]
    if not shown:
        return []
    steps, peaks = [point["step"] for point in points], [point["peak"] or 0.0 for point in points]
    middle, width = (min(steps) + max(steps)) / 2, max(steps) - min(steps) or 1.0
    height = max(peaks) - min(peaks) or 1.0
    placed: list[tuple[float, float]] = []
    by_place: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for point in sorted(shown, key=lambda one: one["step"]):
        x, y = (point["step"] - min(steps)) / width, ((point["peak"] or 0.0) - min(peaks)) / height
        near = sum(abs(x - other[0]) < 0.2 and abs(y - other[1]) < 0.06 for other in placed)
        placed.append((x, y))
        align = "left" if point["step"] <= middle else "right"
        by_place.setdefault((align, _LINES[near % len(_LINES)]), []).append(point)
    return [
        {
            "data": {"values": chosen},
            "transform": [_FILTER],
            "mark": {
                "type": "text",
                "align": align,
                "dx": 9 if align == "left" else -9,
                "dy": dy,
                "limit": 200,
                "fontSize": 11,
                "color": css("ink"),
            },
            "encoding": {"x": _x(), "y": _y(unit), "text": {"field": "name"}},
        }
        for (align, dy), chosen in sorted(by_place.items())
    ]


def _stopped(points: list[dict[str, Any]], unit: str, kinds: list[str]) -> dict[str, Any] | None:
    """What has no step time, at the right edge at the peak that it had reached; at the bottom where none is known."""
    if not points:
        return None
    at = _y(unit) if points[0]["peak"] is not None else {"value": "height"}
    return {
        "name": "stopped" if points[0]["peak"] is not None else "without_peak",
        "data": {"values": points},
        "transform": [_FILTER],
        "mark": {
            "type": "point",
            "filled": True,
            "size": 110,
            "xOffset": {"expr": "-14 - 16 * datum.slot"},
            "yOffset": 0 if points[0]["peak"] is not None else -10,
        },
        "encoding": {"x": {"value": "width"}, "y": at, **_looks(unit, kinds)},
    }


def _front(front: list[dict[str, Any]]) -> dict[str, Any]:
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
            "x": _x(),
            "y": {"field": "peak", "type": "quantitative"},
            "order": {"field": "step", "type": "quantitative"},
        },
    }


def _target(limit: float, unit: str) -> list[dict[str, Any]]:
    values = {"values": [{"peak": limit, "text": f"target {limit:.3f} {unit}"}]}
    y = {"field": "peak", "type": "quantitative"}
    return [
        {"data": values, "mark": {"type": "rule", "color": css("target"), "strokeWidth": 1.5}, "encoding": {"y": y}},
        {
            "data": values,
            "mark": {"type": "text", "align": "left", "dx": 4, "dy": -6, "color": css("target")},
            "encoding": {"y": y, "x": {"value": 0}, "text": {"field": "text"}},
        },
    ]


def _edge_line() -> dict[str, Any]:
    return {
        "data": {"values": [{"text": "no step time"}]},
        "mark": {"type": "text", "align": "right", "baseline": "top", "dy": 2, "fontSize": 11, "color": css("muted")},
        "encoding": {"x": {"value": "width"}, "y": {"value": 0}, "text": {"field": "text"}},
    }
