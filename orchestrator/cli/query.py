"""`query`: SQL on documented views, and questions that have a name."""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import add_results_flag, answer
from orchestrator.config.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.store.database import Store
    from orchestrator.store.query import Answer

REGRESSIONS = "regressions"

_ABOUT = """\
Asks the database. SQL is read-only by construction and goes to the views below, whose columns are stable; sizes are
bytes, times milliseconds. Without arguments: the views with their columns.

questions with a name:
  oom-by-stage [STUDY]                  where trials ran out of memory
  hot-ranks STUDY                       which ranks hold most
  regressions --from REV --to REV       how the effect of each setting changed between two revisions

examples:
  query "SELECT name, label, peak_allocated FROM v_trials WHERE study = 'demo'"
  query "SELECT rank, MAX(peak_allocated) FROM v_stage_memory WHERE stage = 'forward' GROUP BY rank" --csv
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("query", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", metavar="SQL|QUESTION", help="one SELECT, or a question's name")
    parser.add_argument("study", nargs="?", metavar="STUDY", help="the study that a question is about")
    parser.add_argument("--from", dest="before", metavar="REV", help="for regressions: commit or version before")
    parser.add_argument("--to", dest="after", metavar="REV", help="for regressions: commit or version after")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    add_results_flag(parser)


def run(given: argparse.Namespace) -> int:
    from orchestrator.store.query import ask

    answering = answer(given)
    with answering.store as store:
        if given.question is None:
            return _list_views(store, as_json=given.json)
        if given.question == REGRESSIONS:
            found = _regressions(store, given)
        elif " " in given.question.strip():
            if given.study is not None:
                raise UsageError("SQL is one argument: put quotes around it.")
            found = ask(store, given.question)
        else:
            found = _named(store, given.question, given.study)
    _print(found, as_json=given.json, as_csv=given.csv)
    return 0


def _named(store: Store, name: str, study: str | None) -> Answer:
    from orchestrator.config.nearest import did_you_mean
    from orchestrator.store.find_study import find_study
    from orchestrator.store.query import QUESTIONS, question

    asked = QUESTIONS.get(name)
    if asked is None:
        raise UsageError(f"{name!r} is neither SQL nor a question{did_you_mean(name, [*QUESTIONS, REGRESSIONS])}")
    if asked.needs_study and study is None:
        raise UsageError(f"`query {name}` is about one study: name it.")
    if study is not None:
        with store.reading() as connection:
            study = find_study(connection, study)
    return question(store, asked, study)


def _regressions(store: Store, given: argparse.Namespace) -> Answer:
    from orchestrator.analysis.regressions import packages_at, regressions
    from orchestrator.analysis.stored import trial_rows
    from orchestrator.store.query import Answer
    from orchestrator.store.revisions import software_sets, trials_of_software

    if not given.before or not given.after:
        raise UsageError("`query regressions` compares two revisions: give --from REV and --to REV.")
    with store.reading() as connection:
        sets = software_sets(connection)
        chosen = {
            revision: [key for key, content in sets.items() if packages_at(content, revision)]
            for revision in (given.before, given.after)
        }
        for revision, keys in chosen.items():
            if not keys:
                raise UsageError(f"No trial ran with {revision}: no commit or version in the database begins so.")
        trials = trials_of_software(connection, [key for keys in chosen.values() for key in keys])
        found = regressions(trial_rows(connection, trials), given.before, given.after)
    columns = (
        "setting",
        "peak_effect_before",
        "peak_effect_after",
        "peak_change",
        "step_effect_before",
        "step_effect_after",
        "step_change",
        "jobs_before",
        "jobs_after",
        "key",
    )
    rows = [
        (
            one.setting,
            one.before.peak_bytes,
            one.after.peak_bytes,
            one.peak_change,
            one.before.step_fraction,
            one.after.step_fraction,
            one.step_change,
            one.before.jobs,
            one.after.jobs,
            one.key,
        )
        for one in found
    ]
    return Answer(columns, rows)


def _list_views(store: Store, *, as_json: bool) -> int:
    from orchestrator.store.query import QUESTIONS, view_columns
    from orchestrator.store.views import VIEWS

    columns = view_columns(store, [view.name for view in VIEWS])
    if as_json:
        views = [{"view": view.name, "row": view.row, "columns": columns[view.name]} for view in VIEWS]
        print(json.dumps({"views": views, "questions": [*QUESTIONS, REGRESSIONS]}, indent=2))
        return 0
    for view in VIEWS:
        print(f"{view.name}: {view.row}\n    {', '.join(columns[view.name])}")
    for one in QUESTIONS.values():
        print(f"{one.name}{' STUDY' if one.needs_study else ' [STUDY]'}: {one.about}")
    print(f"{REGRESSIONS} --from REV --to REV: how the effect of each setting changed between two revisions")
    return 0


def _print(found: Answer, *, as_json: bool, as_csv: bool) -> None:
    from orchestrator.report.table import Column, Table, print_table
    from orchestrator.report.text import plain

    if as_json:
        names = told_apart(found.columns)
        objects = [{name: _json_value(value) for name, value in zip(names, row, strict=True)} for row in found.rows]
        print(json.dumps(objects, indent=1, default=str, allow_nan=False))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        shown = plain if sys.stdout.isatty() else _same
        writer.writerow(map(shown, found.columns))
        writer.writerows([None if value is None else shown(value) for value in row] for row in found.rows)
    else:
        numeric = [
            all(isinstance(row[index], (int, float)) for row in found.rows if row[index] is not None)
            for index in range(len(found.columns))
        ]
        columns = tuple(Column(plain(name), right) for name, right in zip(found.columns, numeric, strict=True))
        cells = tuple(tuple(plain(_rounded(value)) for value in row) for row in found.rows)
        print_table(Table("", columns, cells), sys.stdout)


def _rounded(value: Any) -> Any:
    """A float as a person reads it; --json and --csv have every digit."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return f"{value:.0f}" if abs(value) >= 1e6 else f"{value:.6g}"


def _same(value: Any) -> Any:
    return value


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return f"<{len(value)} bytes>" if isinstance(value, (bytes, memoryview)) else value


def told_apart(columns: Sequence[str]) -> list[str]:
    """Names of columns with the later of equal ones numbered (`a`, `a_2`): an object has each key once."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names or (number > 1 and name in columns):
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names
