"""The two axes of the scatter: step time to the right, peak memory up, and a strip for what has no step time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SLOT, FIRST_SLOT = 16, 14
"""Pixels between failures that stand beside each other, and from the right edge to the first."""
_HEIGHT, _HEIGHT_WITHOUT_TIMES = 340, 200
_MARGIN = 0.08
"""Of the data's span, left free on each side."""
_TICK_EVERY = 80
"""Pixels between numbers of the time axis, about."""


@dataclass(frozen=True)
class Axes:
    """What the two axes show. Sizes in the chart's unit, times in milliseconds."""

    steps: tuple[float, float]
    peaks: tuple[float, float]
    unit: str
    height: int
    strip: int
    """Pixels at the right edge that are kept for what has no step time."""

    @property
    def x(self) -> dict[str, Any]:
        scale: dict[str, Any] = {"zero": False, "nice": False, "domain": list(self.steps)}
        if self.strip:
            scale["rangeMax"] = {"expr": f"width - {self.strip}"}
        axis = {"tickCount": {"expr": f"ceil(width / {_TICK_EVERY})"}}
        return {"field": "step", "type": "quantitative", "title": "step time (ms)", "scale": scale, "axis": axis}

    @property
    def y(self) -> dict[str, Any]:
        return {
            "field": "peak",
            "type": "quantitative",
            "title": f"peak allocated, hottest rank ({self.unit}; not from 0)",
            "scale": {"zero": False, "nice": False, "domain": list(self.peaks)},
            "axis": {"tickCount": 7},
        }

    def right(self, step: float, width: float) -> float:
        """A step time's place from the left, as a share of a plot of this width."""
        low, high = self.steps
        return (step - low) / (high - low) * (1 - self.strip / width)

    def down(self, peak: float) -> float:
        """A peak's place from the top, as a share."""
        low, high = self.peaks
        return (high - peak) / (high - low)


def axes_of(points: Sequence[dict[str, Any]], limit: float | None, unit: str) -> Axes:
    """Axes that hold every point (`step`, `peak`, and the `slot` of what has no step time) and the limit."""
    ends = ("low", "step", "high")
    steps = [point[end] for point in points for end in ends if point.get(end) is not None]
    peaks = [point["peak"] for point in points if point["peak"] is not None]
    slots = [point["slot"] for point in points if point["step"] is None]
    return Axes(
        steps=_span(steps),
        peaks=_span([*peaks, *([] if limit is None else [limit])]),
        unit=unit,
        height=_HEIGHT if steps else _HEIGHT_WITHOUT_TIMES,
        strip=2 * FIRST_SLOT + SLOT * max(slots) if slots and steps else 0,
    )


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = ((high - low) or abs(high) or 1.0) * _MARGIN
    return low - margin, high + margin
