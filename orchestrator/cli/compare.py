"""`compare`: a study's table, every row against its control."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from orchestrator.cli.storage import add_results_flag

_ABOUT = """\
The guide's table: each candidate's peak memory, step time and throughput, both deltas against the control (selective
with []), and its label. Only rows of one match key get deltas: same effective configuration, software, hardware type
and environment."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("compare", description=_ABOUT)
    parser.add_argument(
        "what", nargs="*", metavar="STUDY|TRIAL", help="studies, or trials by id (default: the newest study)"
    )
    parser.add_argument("--key", metavar="DIGITS", help="only rows whose match key begins so")
    parser.add_argument(
        "--force-unmatched", action="store_true", help="show rows that do not match side by side, without deltas"
    )
    add_results_flag(parser)


def run(args: argparse.Namespace) -> int:
    from orchestrator.analysis.searched import searches
    from orchestrator.cli.rows import results
    from orchestrator.report.compare import as_json, print_comparison
    from orchestrator.report.search import decision_lines
    from orchestrator.report.text import plain

    with results(args, args.what, deltas=not args.force_unmatched) as found:
        chosen = found.key(args.key)
        with found.store.reading() as connection:
            decided = searches(connection, found.found.studies)
    comparison = (chosen if args.force_unmatched else chosen.matched()).comparison
    if args.json:
        decisions = {study: [asdict(one) for one in made] for study, made in decided.items()}
        print(json.dumps(as_json(comparison) | {"decisions": decisions}, indent=1, allow_nan=False))
    else:
        if not args.what:
            target = found.found.target_gb
            held = "" if target is None else f" (its target: {target:g} GB)"
            print(f"study {', '.join(map(plain, found.found.studies))}{held}")
        print_comparison(comparison, sys.stdout, side_by_side=args.force_unmatched)
        for study, made in decided.items():
            print("\n".join(decision_lines(study, made)))
    return 0
