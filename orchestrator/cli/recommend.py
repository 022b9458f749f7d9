"""`recommend`: the choice under a memory target, with its reasons."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from orchestrator.cli.storage import add_results_flag
from orchestrator.config.errors import UsageError
from orchestrator.config.sizes import headroom_gb, target_gb

_ABOUT = """\
Of the candidates that passed with every rank's peak at or below the target, the one with the smallest step time, why
each other one lost, and what to paste. Candidates of different match keys are never weighed against each other. Exit
code 3 where nothing qualifies: the nearest miss is never an answer."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("recommend", description=_ABOUT)
    parser.add_argument("what", nargs="*", metavar="STUDY", help="studies, or trials by id (default: the newest study)")
    parser.add_argument(
        "--target-gb",
        type=target_gb,
        metavar="GB",
        help="what every rank must stay within, in GB (1e9 bytes); default: the study's",
    )
    parser.add_argument(
        "--headroom-gb", type=headroom_gb, default=0, metavar="GB", help="what to leave free below the target"
    )
    parser.add_argument(
        "--objective",
        choices=["step_time", "memory"],
        default="step_time",
        help="what to make small among those that fit (default: step_time)",
    )
    parser.add_argument("--key", metavar="DIGITS", help="only the match key that begins so")
    add_results_flag(parser)


def run(args: argparse.Namespace) -> int:
    from orchestrator.analysis.refusal import ONE_KEY
    from orchestrator.cli.rows import results
    from orchestrator.report.compare import difference_lines
    from orchestrator.report.recommend import as_json, print_recommendation
    from orchestrator.report.search import left_out_count
    from orchestrator.select.pick import Objective

    objective = Objective(args.objective)
    with results(args, args.what) as study:
        found = study.key(args.key).matched(ONE_KEY)
    target = args.target_gb if args.target_gb is not None else found.found.target_gb
    if target is None and objective is Objective.STEP_TIME:
        raise UsageError("recommend needs --target-gb, the memory that every rank must stay within.")
    if target is not None and args.headroom_gb >= target:
        raise UsageError(
            f"--headroom-gb must be smaller than the target: {args.headroom_gb:g} GB of {target:g} GB leave nothing."
        )
    answers = found.recommend(target, headroom_gb=args.headroom_gb, objective=objective)
    if not args.json:
        print(_asked(found.found.studies, target, stored=args.target_gb is None))
    if args.json:
        left_out = {name: dict(why) for name, why in found.found.left_out.items()}
        shown = {"recommendations": [as_json(answer) for answer in answers], "left_out": left_out}
        print(json.dumps(shown, indent=1, allow_nan=False))
    else:
        for number, answer in enumerate(answers):
            if number:
                print()
            print_recommendation(answer, sys.stdout)
        if len(answers) > 1:
            print("\nCandidates of different match keys are not weighed against each other. The keys differ in:")
            for line in difference_lines(found.comparison):
                print(f"  {line}")
        for name, reasons in found.found.left_out.items():
            for line in left_out_count(name, reasons):
                print(line)
    return 0 if any(answer.chosen is not None for answer in answers) else 3


def _asked(studies: Sequence[str], target: float | None, *, stored: bool) -> str:
    """What is answered: the studies, and the target with where it comes from."""
    from orchestrator.report.text import plain

    names = f"study {', '.join(map(plain, studies))}" if studies else "trials"
    whose = " (the study's)" if stored else ""
    return f"{names}: " + ("no target" if target is None else f"target {target:g} GB{whose}")
