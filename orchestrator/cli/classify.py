"""`classify`: what happened in a training log, also one that we did not run."""

from __future__ import annotations

import argparse
import json
from typing import Any

_ABOUT = """\
Reads the logs of one job, from torchrun, srun or a container, ours or not, and says what stopped it: the cause, the
stage, the first rank to fail, the numbers of the allocation that failed, the lines that decided, and what to do next.
Compressed logs (gzip, zstd, xz, bzip2) are read as they are. A log alone never shows a pass."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "classify", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", nargs="+", metavar="LOG", help="log files of one job; - is standard input")


def run(args: argparse.Namespace) -> int:
    from orchestrator.config.errors import UsageError
    from orchestrator.outcome.log import judge, read_logs
    from orchestrator.outcome.log.source import UnreadableLogError
    from orchestrator.report.outcome import as_json, screen

    try:
        found = judge(read_logs(args.logs))
    except UnreadableLogError as error:
        raise UsageError(f"{error}.") from error
    if args.json:
        print(json.dumps(as_json(found), indent=1, allow_nan=False))
    else:
        for line in screen(found):
            print(line)
    return 0
