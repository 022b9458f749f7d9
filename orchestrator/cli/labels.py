"""`labels`: which words `recompute_modules` may have in a revision, and what each needs of the model."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.plan.verdict import Revision

_ABOUT = """\
The module labels that selective recomputation allows in the installed Megatron Core, or in the one of --revision, in
that revision's own word; what each label replays, and what a model must have for it to act."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("labels", description=_ABOUT)
    parser.add_argument(
        "--revision",
        metavar="PATH",
        help="a checkout of Megatron-LM or Megatron Bridge, an environment's folder, or a Python interpreter",
    )


def run(args: argparse.Namespace) -> int:
    from orchestrator.config.errors import EnvironmentFailure
    from orchestrator.plan.installation import Installation
    from orchestrator.plan.labels import ask_labels
    from orchestrator.plan.verdict import Revision

    note = None
    try:
        revision = ask_labels(Installation.at(args.revision) if args.revision else Installation())
    except EnvironmentFailure as error:
        if args.revision:
            raise
        revision = Revision()
        note = f"{error} What follows is what {revision.title} allows."
    if args.json:
        print(json.dumps(_as_json(revision, note), indent=1))
        return 0
    _print(revision, note)
    return 0


def _print(revision: Revision, note: str | None) -> None:
    from orchestrator.plan.labels import LABELS, allowed_labels
    from orchestrator.report.table import Column, Table, print_table
    from orchestrator.report.text import plain

    allowed = allowed_labels(revision)
    rows = []
    for name in sorted(allowed):
        label = LABELS.get(name)
        rows.append((plain(name), label.boundary if label else "-", label.needs if label else "not known to this tool"))
    columns = (Column("label"), Column("replays", wrap=True), Column("needs", wrap=True))
    print_table(Table(f"{plain(revision.title)} allows {len(allowed)} labels", columns, tuple(rows)), sys.stdout)
    for name in sorted(set(LABELS) - allowed):
        print(f"not in this revision: {name} ({LABELS[name].boundary})")
    if note:
        print(f"note: {plain(note)}")


def _as_json(revision: Revision, note: str | None) -> dict[str, Any]:
    from orchestrator.plan.labels import LABELS, allowed_labels

    labels = []
    for name in sorted(allowed_labels(revision)):
        label = LABELS.get(name)
        labels.append(
            {"label": name, "replays": label.boundary if label else None, "needs": label.needs if label else None}
        )
    return {
        "megatron_core": revision.core,
        "asked": revision.labels is not None,
        "labels": labels,
        "not_in_this_revision": sorted(set(LABELS) - allowed_labels(revision)),
        "note": note,
    }
