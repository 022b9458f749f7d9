"""`export`: a comparison as CSV, JSON, Parquet, Markdown, or the results of a Bridge skill card."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import add_results_flag
from orchestrator.config.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.analysis.comparison import Comparison

FORMATS = ("csv", "json", "parquet", "markdown", "skill-card")
_BY_SUFFIX = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".md": "markdown", ".yaml": "skill-card"}
_ABOUT = """\
Writes a comparison: csv and parquet have one row a run, json is that of `compare --json`, markdown the guide's table,
skill-card the measured_results of a skill's card.yaml in Megatron Bridge. Sizes are bytes where the name says so."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("export", description=_ABOUT)
    parser.add_argument("what", nargs="*", metavar="STUDY|TRIAL", help="studies, or trials by id (default: the newest)")
    parser.add_argument("--format", choices=FORMATS, help="default: by the file's ending, else csv")
    parser.add_argument("--output", "-o", metavar="FILE", help="default: standard output")
    parser.add_argument("--key", metavar="DIGITS", help="only rows whose match key begins so")
    add_results_flag(parser)


def run(args: argparse.Namespace) -> int:
    from orchestrator.cli.rows import results
    from orchestrator.report.whole_file import write_whole

    path = Path(args.output) if args.output else None
    chosen = args.format or ("json" if args.json else _by_suffix(path))
    if chosen == "parquet" and path is None:
        raise UsageError("Parquet is a binary format: name its file with --output.")
    with results(args, args.what) as found:
        content = _content(found.key(args.key).comparison, chosen)
    if path is None:
        sys.stdout.write(content.decode())
    else:
        size = write_whole(path, content)
        if args.json:
            print(json.dumps({"files": [{"path": str(path), "bytes": size}]}, indent=1))
        else:
            print(f"{path}: {size / 1000:.0f} kB")
    return 0


def _by_suffix(path: Path | None) -> str:
    """The format that a file's ending stands for; csv without a file or an ending.

    Raises:
        UsageError: the ending stands for none.
    """
    if path is None or not path.suffix:
        return "csv"
    chosen = _BY_SUFFIX.get(path.suffix.lower())
    if chosen is None:
        known = ", ".join(_BY_SUFFIX)
        raise UsageError(f"No format is written to {path.suffix} files: name the file {known}, or give --format.")
    return chosen


def _content(comparison: Comparison, chosen: str) -> bytes:
    from orchestrator.report.export_rows import records

    if chosen == "csv":
        from orchestrator.report.export_table import csv_text

        return csv_text(records(comparison)).encode()
    if chosen == "parquet":
        from orchestrator.report.export_table import parquet_bytes

        return parquet_bytes(records(comparison))
    if chosen == "markdown":
        from orchestrator.report.export_markdown import markdown

        return markdown(comparison).encode()
    if chosen == "skill-card":
        from orchestrator.report.export_card import card_yaml

        return card_yaml(comparison).encode()
    from orchestrator.report.compare import as_json

    return (json.dumps(as_json(comparison), indent=1, allow_nan=False) + "\n").encode()
