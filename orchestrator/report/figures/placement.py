"""Where the names of a scatter's marks go so that none covers another, a mark or the target line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FONT = 11
"""Pixels."""
NARROWEST, WIDEST = 640, 1180
"""Widths of a plot, in pixels, in which names are placed. A narrower one has room for two or three names at most."""
LONGEST = 200
"""Pixels of a name; the renderer cuts the rest."""
_LETTER = 6.9
"""Pixels of a letter at `FONT`, of the widest of the usual fonts."""
_OUTSIDE = 100
"""What leaving the plot costs: more than covering anything."""
_MARK = 7.0
_HALF_LINE = 7.0

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Mark:
    """A mark's place as shares of the plot's width and height, from its left and its top."""

    x: float
    y: float
    name: str
    must: bool = False
    """Its name is shown even where it has to cover something."""


@dataclass(frozen=True)
class Spot:
    """Where a name stands beside its mark, in pixels, and which of its ends is there."""

    dx: int
    dy: int
    align: str


SPOTS = (
    Spot(10, 0, "left"),
    Spot(-10, 0, "right"),
    Spot(0, -14, "center"),
    Spot(0, 15, "center"),
    Spot(8, -12, "left"),
    Spot(8, 12, "left"),
    Spot(-8, -12, "right"),
    Spot(-8, 12, "right"),
)


def place(
    marks: Sequence[Mark],
    named: Sequence[Mark],
    height: float,
    *,
    lines: Sequence[Box] = (),
    taken: Sequence[Box] = (),
) -> dict[str, Spot]:
    """A spot for each of `named`, by name; those without room are left out, unless they must be shown.

    Names keep off `lines` (ends as shares of width and height) and off `taken` (boxes in pixels) as well. What stands
    apart in the narrowest and in the widest plot does so between them.
    """
    widths = (NARROWEST, WIDEST)
    covered = [
        [*(_around(mark, width, height) for mark in marks), *(_along(line, width, height) for line in lines), *taken]
        for width in widths
    ]

    def cost(mark: Mark, spot: Spot) -> int:
        boxes = [_box(mark, spot, width, height) for width in widths]
        hits = sum(_meet(box, other) for box, others in zip(boxes, covered, strict=True) for other in others)
        inside = all(_inside(box, width, height) for box, width in zip(boxes, widths, strict=True))
        return hits + (0 if inside else _OUTSIDE)

    def room(mark: Mark) -> int:
        return sum(not cost(mark, spot) for spot in SPOTS)

    found: dict[str, Spot] = {}
    # What has the least room chooses first.
    for mark in sorted(named, key=lambda one: (not one.must, room(one))):
        best = min(SPOTS, key=lambda spot: cost(mark, spot))
        if cost(mark, best) and not mark.must:
            continue
        found[mark.name] = best
        for others, width in zip(covered, widths, strict=True):
            others.append(_box(mark, best, width, height))
    return found


def _around(mark: Mark, width: float, height: float) -> Box:
    x, y = mark.x * width, mark.y * height
    return (x - _MARK, y - _MARK, x + _MARK, y + _MARK)


def _along(line: Box, width: float, height: float) -> Box:
    left, right = sorted((line[0] * width, line[2] * width))
    top, bottom = sorted((line[1] * height, line[3] * height))
    return (left - 1, top - 1, right + 1, bottom + 1)


def _box(mark: Mark, spot: Spot, width: float, height: float) -> Box:
    long = min(LONGEST, len(mark.name) * _LETTER)
    x, y = mark.x * width + spot.dx, mark.y * height + spot.dy
    left = x if spot.align == "left" else x - long if spot.align == "right" else x - long / 2
    return (left, y - _HALF_LINE, left + long, y + _HALF_LINE)


def _inside(box: Box, width: float, height: float) -> bool:
    return box[0] >= 0 and box[2] <= width and box[1] >= 0 and box[3] <= height


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
