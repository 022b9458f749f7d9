"""`predict --against FILE`: measured rows beside the predictions of the same settings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.place import note
from orchestrator.config.errors import UsageError
from orchestrator.report.text import plain

if TYPE_CHECKING:
    from orchestrator.predict.measured import Held, Measured
    from orchestrator.predict.memory import RankMemory

_MOST_ROWS = 10_000


def show_against(args: argparse.Namespace) -> int:
    """Print every figure of the rows, predicted and measured, and the farthest of each kind."""
    from orchestrator.predict.measured import worst
    from orchestrator.report.predict_against import against_as_json, print_held

    rows = read_rows(args.against)
    held = hold_rows(args, rows)
    if args.json:
        print(json.dumps(against_as_json(held, worst(held)), indent=1, allow_nan=False))
    else:
        print_held(held, worst(held), sys.stdout)
        unread = sorted({key for row in rows for key in row.unread})
        if unread:
            print(f"not read of these rows: {', '.join(unread)}")
    return 0


def read_rows(path: str) -> list[Measured]:
    """The rows of a file of JSON lines.

    Raises:
        UsageError: it cannot be read, or a line is no measured row.
    """
    from orchestrator.predict.measured import NotMeasuredError, read_measured

    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} could not be read: {error}") from error
    found = []
    for number, line in enumerate(lines[:_MOST_ROWS], start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise NotMeasuredError("it is no JSON object")
            found.append(read_measured(row))
        except (NotMeasuredError, ValueError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
    if not found:
        raise UsageError(f"{path} has no rows: it takes one JSON object a line")
    return found


def hold_rows(args: argparse.Namespace, rows: list[Measured]) -> list[Held]:
    """Every figure of every row. Rows are held against the first control of the same other settings."""
    from orchestrator.predict.measured import hold
    from orchestrator.predict.problem import CannotPredictError

    given = _read_given(args)
    requests = _requests(args, {row.overrides for row in rows if row.effective is None})
    predicted: list[tuple[Measured, RankMemory]] = []
    for row in rows:
        try:
            predicted.append((row, _predict(args, row, requests, given)))
        except CannotPredictError as error:
            note(f"{plain(row.name)}: no prediction: {plain(str(error))}")
    if not predicted:
        raise UsageError("No row can be predicted: see above.")
    controls: dict[str, tuple[Measured, RankMemory]] = {}
    for row, rank in predicted:
        if row.is_control:
            controls.setdefault(row.job, (row, rank))
    return [one for row, rank in predicted for one in hold(row, rank, controls.get(row.job))]


def _predict(
    args: argparse.Namespace,
    row: Measured,
    requests: Mapping[tuple[str, ...], Mapping[str, Any]],
    given: Mapping[str, Any] | None,
) -> RankMemory:
    from orchestrator.predict.memory import predict_memory
    from orchestrator.predict.read import read_job

    # A finished configuration says everything: the command line's job is that of the other rows.
    asked = requests[row.overrides] if row.effective is None else {"trainer": {"name": "bridge"}}
    request: dict[str, Any] = {**asked, **row.recompute}
    for group, settings in row.settings.items():
        request[group] = {**(request.get(group) or {}), **settings}
    return predict_memory(read_job(request, row.effective or given, args.transformer_engine).job).hottest


def _requests(args: argparse.Namespace, wanted: set[tuple[str, ...]]) -> dict[tuple[str, ...], Mapping[str, Any]]:
    from orchestrator.config.compose import composing

    found: dict[tuple[str, ...], Mapping[str, Any]] = {}
    with composing(args.config_dir, args.config_name) as composer:
        for overrides in wanted:
            found[overrides] = composer.compose([*args.overrides, *overrides])
    return found


def _read_given(args: argparse.Namespace) -> Mapping[str, Any] | None:
    from orchestrator.cli.predict import read_effective

    return read_effective(args.effective) if args.effective else None
