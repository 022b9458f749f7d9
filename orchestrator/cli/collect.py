"""`collect`: take in records that ranks have written."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import add_results_flag, collect_all, locate
from orchestrator.config.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.store.collect import Collected
    from orchestrator.store.database import Store
    from orchestrator.store.problem import Problem
    from orchestrator.store.reclassify import Reclassified


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "collect",
        help="take in records that ranks have written",
        description="Takes in what ranks and drivers have written since the last time. Safe to repeat and to "
        "interrupt; what cannot be read is named and holds up nothing else. Never submits anything. Afterwards, ended "
        "trials of studies that name trackers (`study.sinks`) are sent there; one that fails is named, no more.",
    )
    add_results_flag(parser)
    parser.add_argument("--reclassify", action="store_true", help="apply this release's rules to old trials too")


def run(given: argparse.Namespace) -> int:
    from orchestrator.cli.trackers import send_on, wanted
    from orchestrator.store.collect import open_problems
    from orchestrator.store.database import open_store
    from orchestrator.store.reclassify import reclassify

    place = locate(given)
    if place.results_dir is not None and not place.results_dir.is_dir():
        raise UsageError(f"There is no results folder {place.results_dir.absolute()} to collect: --results names one.")
    with open_store(place.url, write=True) as store:
        found = collect_all(store, place)
        relabelled = reclassify(store) if given.reclassify else None
        problems = open_problems(store)
        trackers = wanted(store, place.results_dir) if place.results_dir is not None else {}
        if given.json:
            print(json.dumps(_as_json(found, problems, relabelled, store.where, store.notes), indent=2))
        else:
            _show(found, problems, relabelled, store)
    if place.results_dir is not None:
        send_on(trackers, place.url, place.results_dir)
    return 0


def _show(found: list[Collected], problems: list[Problem], relabelled: Reclassified | None, store: Store) -> None:
    from orchestrator.report.status import problem_lines
    from orchestrator.report.text import plain

    new, updated, ranks = (sum(getattr(one, name) for one in found) for name in ("new", "updated", "ranks"))
    print(f"{new} new attempts, {updated} updated, {ranks} rank records, into {plain(store.where)}")
    if relabelled is not None:
        print(f"{relabelled.examined} attempts classified again, {len(relabelled.changed)} labels changed")
        for change in relabelled.changed:
            print(f"  {change.trial}/{change.attempt}: {plain(change.before)} -> {plain(change.after)}")
    for note in store.notes:
        print(f"note: {plain(note)}", file=sys.stderr)
    for line in problem_lines(problems):
        print(line, file=sys.stderr)


def _as_json(found: list[Collected], problems: list[Any], relabelled: Any, where: str, notes: Any) -> dict[str, Any]:
    from dataclasses import asdict

    names = ("new", "updated", "ranks", "batches", "plans")
    return {
        "database": where,
        **{name: sum(getattr(one, name) for one in found) for name in names},
        "seconds": round(sum(one.seconds for one in found), 3),
        "problems": [asdict(problem) for problem in problems],
        "reclassified": asdict(relabelled) if relabelled is not None else None,
        "notes": list(notes),
    }
