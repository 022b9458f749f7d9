"""`report`: one page to send around, or Markdown with pictures for a pull request."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import add_results_flag
from orchestrator.config.errors import UsageError
from orchestrator.config.sizes import headroom_gb, target_gb

if TYPE_CHECKING:
    from orchestrator.api import Results

_ABOUT = """\
Writes what a study says as one HTML file that loads nothing: what to set and why, what each candidate costs, where the
memory went, what stopped, what was not measured, and how to repeat it. With --markdown, a Markdown file with pictures
beside it."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("report", description=_ABOUT)
    parser.add_argument("what", nargs="*", metavar="STUDY|TRIAL", help="studies, or trials by id (default: the newest)")
    parser.add_argument("--output", "-o", metavar="FILE", help="default: report.html, or report.md with --markdown")
    parser.add_argument("--markdown", action="store_true", help="Markdown, with pictures (PNG) beside the file")
    parser.add_argument(
        "--target-gb", type=target_gb, metavar="GB", help="what every rank must stay within (default: the study's)"
    )
    parser.add_argument(
        "--headroom-gb", type=headroom_gb, default=0.0, metavar="GB", help="what to leave free below it"
    )
    parser.add_argument("--key", metavar="DIGITS", help="only rows whose match key begins so")
    add_results_flag(parser)


def run(args: argparse.Namespace) -> int:
    from orchestrator.cli.rows import results

    if args.target_gb is not None and args.headroom_gb >= args.target_gb:
        raise UsageError("--target-gb must be larger than --headroom-gb.")
    path = Path(args.output or ("report.md" if args.markdown else "report.html"))
    with results(args, args.what) as found:
        chosen = found.key(args.key)
        made = _markdown(chosen, args, path) if args.markdown else _page(chosen, args, path)
    if args.json:
        print(json.dumps({"files": [{"path": str(one), "bytes": size} for one, size in made]}, indent=1))
    else:
        for one, size in made:
            print(f"{one}: {size / 1000:.0f} kB", file=sys.stdout)
    return 0


def _page(found: Results, args: argparse.Namespace, path: Path) -> list[tuple[Path, int]]:
    from orchestrator.report.whole_file import write_whole

    return [(path, write_whole(path, found.html(args.target_gb, headroom_gb=args.headroom_gb).encode()))]


def _markdown(found: Results, args: argparse.Namespace, path: Path) -> list[tuple[Path, int]]:
    from orchestrator.report.page.markdown import pictures, report_markdown
    from orchestrator.report.whole_file import write_whole

    content = found.content(args.target_gb, headroom_gb=args.headroom_gb)
    shown = pictures(content, path.stem)
    text = report_markdown(content, shown)
    made = [(path, write_whole(path, text.encode()))]
    for name, figure in shown.items():
        beside = path.parent / name
        made.append((beside, write_whole(beside, figure.png())))
    return made
