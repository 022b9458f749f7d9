"""`diagnose`: what went wrong or did nothing, why, and the command to run next."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from orchestrator.cli.storage import add_results_flag

_ABOUT = """\
The guide's failure table over stored evidence: for each candidate of a study, or for one trial, what was seen, its
likely cause, and the next step as a command line. Exit code 3 where no rule has anything to say."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("diagnose", description=_ABOUT)
    parser.add_argument("what", nargs="*", metavar="STUDY|TRIAL", help="studies, or trials by id (default: the newest)")
    parser.add_argument("--rules", action="store_true", help="list the rules and where each comes from")
    add_results_flag(parser)


def run(args: argparse.Namespace) -> int:
    from orchestrator.analysis.comparison import compare
    from orchestrator.analysis.diagnosis import diagnose
    from orchestrator.analysis.failure_rules import FAILURE_TABLE
    from orchestrator.analysis.further_rules import FURTHER_RULES
    from orchestrator.analysis.reproduce import group_commands
    from orchestrator.cli.rows import read_rows
    from orchestrator.report.diagnose import as_json, print_findings

    rules = (*FAILURE_TABLE, *FURTHER_RULES)
    if args.rules:
        return _list_rules([(rule.id, rule.source) for rule in rules], as_json=args.json)
    found = read_rows(args, args.what)
    comparison = compare(found.rows)
    commands = group_commands(comparison, found.target_gb)
    findings = diagnose(comparison, rules, commands, only=frozenset(found.trials))
    if args.json:
        print(json.dumps({"findings": as_json(findings)}, indent=1, allow_nan=False))
    elif findings:
        print_findings(findings, sys.stdout)
    else:
        print("No rule has anything to say of these rows.")
    return 0 if findings else 3


def _list_rules(rules: list[tuple[str, str]], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"rule": rule, "source": source} for rule, source in rules], indent=1))
    else:
        for rule, source in rules:
            print(f"{rule}: {source}")
    return 0
