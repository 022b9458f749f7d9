"""`cancel`: end a trial, a study or everything that runs or waits."""

from __future__ import annotations

import argparse
import json
from typing import Any

from orchestrator.cli.live import Live, live, refuse_copies
from orchestrator.cli.storage import Answering, add_results_flag, answer
from orchestrator.config.errors import NothingQualifies, UsageError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "cancel",
        help="end a trial, a study or everything that runs or waits",
        description="Ends what runs within seconds and takes what waits from the queue. A trial that ran ends as "
        "failed:cancelled, and the same run command runs it again; one that had measured its steady window has passed.",
    )
    parser.add_argument("what", nargs="*", metavar="TRIAL|STUDY", help="ids or names, or the beginning of one")
    parser.add_argument("--all", action="store_true", help="everything of this database that runs or waits")
    add_results_flag(parser)


def run(given: argparse.Namespace) -> int:
    from orchestrator.dispatch.submit import cancel
    from orchestrator.report.text import counted

    if bool(given.what) == given.all:
        raise UsageError("cancel needs a trial, a study, or --all.")
    answering = answer(given)
    with answering.store:
        wanted = [(one, None) for one in live(answering)] if given.all else _chosen(answering, given.what)
        if not wanted:
            refuse_copies(answering)
    if not wanted:
        raise NothingQualifies("Nothing of that runs or waits.")
    for one, trials in wanted:
        cancel(one.results_dir, one.batch.batch, trials)
    if given.json:
        said = [{"batch": one.batch.batch, "study": one.batch.study, "trials": trials} for one, trials in wanted]
        print(json.dumps({"cancelled": said}, indent=2))
        return 0
    for one, trials in wanted:
        what = counted(len(one.batch.open_trials), "trial") if trials is None else ", ".join(trials)
        print(f"cancelling {what} of batch {one.batch.batch} (study {one.batch.study})")
    return 0


def _chosen(answering: Answering, words: list[str]) -> list[tuple[Live, list[str] | None]]:
    """Batches of the named studies whole, and of the others the named trials that are open in them."""
    from orchestrator.store.find import find

    with answering.store.reading() as connection:
        found = [find(connection, word) for word in words]
    studies = {one.name for one in found if one.kind == "study"}
    trials = [one.name for one in found if one.kind == "trial"]
    chosen: list[tuple[Live, list[str] | None]] = []
    for one in live(answering):
        own = [trial for trial in trials if trial in one.batch.open_trials]
        if one.batch.study in studies:
            chosen.append((one, None))
        elif own:
            chosen.append((one, own))
    return chosen
