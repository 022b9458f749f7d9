"""`show`: one trial, or the trials of a study."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from orchestrator.cli.storage import add_results_flag, answer


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "show",
        help="one trial: what was asked, what ran, where it stopped, every rank",
        description="Shows a trial: requested against effective settings, the outcome with the lines that decided it, "
        "memory by stage over all ranks, iterations, software, files. With a study's name: its trials.",
    )
    parser.add_argument("what", metavar="TRIAL|STUDY", help="an id or name, or the beginning of one")
    parser.add_argument("--brief", action="store_true", help="leave out the tables of stages, iterations and ranks")
    add_results_flag(parser)


def run(given: argparse.Namespace) -> int:
    from dataclasses import asdict

    from orchestrator.report.status import trials_table
    from orchestrator.report.table import Table, print_table
    from orchestrator.report.text import plain
    from orchestrator.report.trial import trial_blocks
    from orchestrator.store.detail import trial_detail
    from orchestrator.store.find import find
    from orchestrator.store.overview import trial_lines

    answering = answer(given)
    with answering.store, answering.store.reading() as connection:
        found = find(connection, given.what)
        if found.kind == "study":
            lines = trial_lines(connection, found.name)
            if given.json:
                print(json.dumps({"study": found.name, "trials": [asdict(one) for one in lines]}, indent=2))
            else:
                print_table(trials_table(lines), sys.stdout)
                print(f"`show TRIAL` tells all of one; `compare {plain(found.name)}` holds them against their control.")
            return 0
        trial = trial_detail(connection, found.name)
    assert trial is not None, "a trial that was found a moment ago, in the same view of the database"
    if given.json:
        print(json.dumps(asdict(trial), indent=2))
    else:
        for block in trial_blocks(trial, details=not given.brief):
            if isinstance(block, Table):
                print_table(block, sys.stdout)
            else:
                print(block)
    return 0
