"""`status`: how far each study is."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from orchestrator.cli.storage import Answering, add_results_flag, answer


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "status",
        help="how far each study is",
        description="Collects what ranks have written, then shows each study's trials by outcome, and what runs and "
        "waits. With a study's name, also its trials.",
    )
    parser.add_argument("study", nargs="?", metavar="STUDY", help="one study, by name or the beginning of its name")
    add_results_flag(parser)


def run(given: argparse.Namespace) -> int:
    from orchestrator.report.text import plain
    from orchestrator.store.failures import StoreMissing

    try:
        answering = answer(given)
    except StoreMissing as error:
        if given.db or given.study:
            raise
        print(json.dumps({"studies": []}) if given.json else f"No study has been run here yet. {plain(error)}")
        return 0
    with answering.store:
        return _show(given, answering)


def _show(given: argparse.Namespace, answering: Answering) -> int:
    from orchestrator.analysis.held import held_back
    from orchestrator.analysis.searched import left_out, searches
    from orchestrator.report.hours import hours_lines
    from orchestrator.report.search import decision_lines
    from orchestrator.report.status import (
        problem_lines,
        running_lines,
        studies_table,
        trials_table,
        waiting_lines,
        whereabouts,
    )
    from orchestrator.report.table import print_table
    from orchestrator.report.text import plain
    from orchestrator.store.collect import open_problems
    from orchestrator.store.find_study import find_study
    from orchestrator.store.hours import study_hours
    from orchestrator.store.overview import PLANNED, running, studies, trial_lines, waiting

    with answering.store.reading() as connection:
        name = find_study(connection, given.study) if given.study else None
        found = studies(connection, name)
        going = running(connection, name)
        coming = waiting(connection, name)
        lines = trial_lines(connection, name) if name else []
        now = time.time()
        hours = study_hours(connection, now, name)
        decided = searches(connection, [one.name for one in found])
        held = held_back(connection, {one.trial for one in coming})
    without = left_out(decided)
    idle = {(one.study, one.trial) for one in coming if one.state == PLANNED and one.name in without.get(one.study, ())}
    coming = [one for one in coming if (one.study, one.trial) not in idle]
    found = [one.leaving_out(sum(study == one.name for study, _ in idle)) for one in found]
    lines = [one.leaving_out() if (name, one.trial) in idle else one for one in lines]
    hours = [one.without(len(without.get(one.study, ()))) for one in hours]
    problems = open_problems(answering.store)
    if given.json:
        from dataclasses import asdict

        print(
            json.dumps(
                {
                    "database": answering.store.where,
                    "studies": [asdict(one) for one in found],
                    "running": [{**asdict(one), "at": asdict(whereabouts(one, now))} for one in going],
                    "gpu_hours": [asdict(one) for one in hours],
                    "decisions": {study: [asdict(one) for one in made] for study, made in decided.items()},
                    "waiting": [{**asdict(one), "held_back": one.trial in held} for one in coming],
                    "trials": [asdict(one) for one in lines],
                    "problems": [asdict(one) for one in problems],
                    "notes": answering.notes,
                },
                indent=2,
            )
        )
        return 0
    if found:
        print_table(studies_table(found), sys.stdout)
    else:
        print("No study has been run here yet.")
    if lines:
        print()
        print_table(trials_table(lines), sys.stdout)
    for line in [*running_lines(going, now), *waiting_lines(coming, held), *hours_lines(hours)]:
        print(line)
    for study, made in decided.items():
        for line in decision_lines(study, made if name else made[-1:], named=name is not None):
            print(line)
    for note in answering.notes:
        print(f"note: {plain(note)}", file=sys.stderr)
    for line in problem_lines(problems):
        print(line, file=sys.stderr)
    return 0
