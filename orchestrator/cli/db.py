"""`db`: where the database is, and bringing it up to date."""

from __future__ import annotations

import argparse
import json
from typing import Any

from orchestrator.cli.storage import add_results_flag, locate


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "db",
        help="the database: its path, and upgrading it",
        description="`db path` says which database is used and how it is kept; `db upgrade` brings one of an older "
        "release to this one's schema, all of it or nothing.",
    )
    parser.add_argument("action", choices=["path", "upgrade"], metavar="path|upgrade")
    add_results_flag(parser)


def run(given: argparse.Namespace) -> int:
    from orchestrator.store.database import describe, open_store, shown_url
    from orchestrator.store.schema import REVISIONS

    place = locate(given)
    if given.action == "path":
        where, revision, notes = describe(place.url)
        answer = {"database": where, "schema": revision, "newest_schema": REVISIONS[-1], "notes": notes}
        print(json.dumps(answer, indent=2) if given.json else where)
        return 0
    before = describe(place.url)[1]
    with open_store(place.url, write=True) as store:
        notes = list(store.notes)
    answer = {"database": shown_url(place.url), "before": before, "schema": REVISIONS[-1], "notes": notes}
    if given.json:
        print(json.dumps(answer, indent=2))
    elif before == REVISIONS[-1]:
        print(f"{shown_url(place.url)}: schema {before}, up to date")
    else:
        print(f"{shown_url(place.url)}: schema {before or 'none'} -> {REVISIONS[-1]}")
    return 0
