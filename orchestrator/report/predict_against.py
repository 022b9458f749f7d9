"""Measured rows beside predictions of the same settings, on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from orchestrator.predict.measured import GOALS, Held
from orchestrator.report.table import ABSENT, Column, Table, print_table
from orchestrator.report.text import plain
from orchestrator.vocabulary.units import format_bytes

_WORDS = {True: "yes", False: "no", None: ABSENT}


def print_held(held: Sequence[Held], worst: Mapping[str, Held], stream: TextIO) -> None:
    """One line a figure, then the one of each kind that is farthest off."""
    columns = (
        Column("candidate", wrap=True),
        Column("iteration"),
        Column("what"),
        Column("predicted", right=True),
        Column("measured", right=True),
        Column("error", right=True),
        Column("within its goal", spare=1),
    )
    rows = tuple(
        (
            plain(one.name),
            one.iteration,
            one.what,
            format_bytes(one.predicted),
            format_bytes(one.measured),
            f"{one.share:+.3%}",
            _WORDS[one.within],
        )
        for one in held
    )
    print_table(Table("Predicted, uncalibrated, and measured", columns, rows), stream)
    for what, one in worst.items():
        goal = f", its goal is {GOALS[what]:.0%}{'' if one.within else ': missed'}" if what in GOALS else ""
        print(f"{what}: at most {abs(one.share):.3%} off ({plain(one.name)}, {one.iteration}){goal}", file=stream)


def against_as_json(held: Sequence[Held], worst: Mapping[str, Held]) -> dict[str, Any]:
    """Figures as JSON; sizes are bytes, errors are shares of what was measured."""
    return {"figures": [_figure(one) for one in held], "worst": {what: _figure(one) for what, one in worst.items()}}


def _figure(one: Held) -> dict[str, Any]:
    return {
        "name": one.name,
        "iteration": one.iteration,
        "what": one.what,
        "predicted": one.predicted,
        "measured": one.measured,
        "error": one.share,
        "goal": GOALS.get(one.what),
        "within": one.within,
    }
