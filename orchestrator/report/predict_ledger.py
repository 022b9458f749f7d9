"""Predictions against what was measured, on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

from orchestrator.predict.past import WHOLE, Error, Summary
from orchestrator.report.table import Column, Table, print_table
from orchestrator.report.text import plain
from orchestrator.vocabulary.units import format_bytes


def print_errors(errors: Sequence[Error], stream: TextIO) -> None:
    """One line for each trial and stage that was predicted and measured."""
    columns = (
        Column("candidate", wrap=True),
        Column("stage"),
        Column("predicted", right=True),
        Column("measured", right=True),
        Column("error", right=True),
        Column("in its range", spare=1),
    )
    rows = tuple(
        (
            plain(error.made.name),
            error.stage,
            format_bytes(error.predicted),
            format_bytes(error.measured),
            f"{error.share:+.2%}",
            ("yes" if error.inside else "no") if error.stage == WHOLE else "-",
        )
        for error in errors
    )
    print_table(Table("Predicted before the run, and measured", columns, rows), stream)


def print_summary(summaries: Sequence[Summary], stream: TextIO) -> None:
    """Errors by model, stage and revision; `--json` has them by labels too."""
    columns = (
        Column("model"),
        Column("stage"),
        Column("trials", right=True),
        Column("mean error", right=True),
        Column("worst", right=True),
        Column("revision", spare=2, wrap=True),
    )
    rows = tuple(
        (
            plain(one.model),
            one.stage,
            str(one.count),
            f"{one.mean_share:+.2%}",
            f"{one.worst_share:+.2%}",
            plain(one.revision),
        )
        for one in summaries
    )
    print_table(Table("Error by model, stage and revision (by labels too: --json)", columns, rows), stream)


def ledger_as_json(errors: Sequence[Error], summaries: Sequence[Summary], waiting: int) -> dict[str, Any]:
    """The ledger as JSON; sizes are bytes, errors are shares of what was measured."""
    return {
        "errors": [
            {
                "trial": error.made.trial,
                "name": error.made.name,
                "model": error.made.model,
                "labels": error.made.labels,
                "revision": error.made.revision,
                "stage": error.stage,
                "predicted": error.predicted,
                "measured": error.measured,
                "error": error.share,
                "in_range": error.inside if error.stage == WHOLE else None,
            }
            for error in errors
        ],
        "summary": [asdict(one) for one in summaries],
        "not_measured_yet": waiting,
    }
