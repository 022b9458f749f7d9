"""`send`: finished trials to MLflow or Weights & Biases, each once."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import RESULTS, add_results_flag, locate
from orchestrator.config.errors import EnvironmentFailure, OrchestratorError, UsageError

if TYPE_CHECKING:
    from orchestrator.report.sinks.outgoing import Sink

_ABOUT = """\
Copies the settings and figures of trials that have a result to another tracker. A trial that is there already is left
alone, so that the same command may be run again. Trials know nothing of it: a tracker that is down fails this command
only. A study with study.sinks=[mlflow] is sent without being asked, whenever it is collected."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("send", description=_ABOUT)
    parser.add_argument("what", nargs="*", metavar="STUDY|TRIAL", help="studies, or trials by id (default: the newest)")
    parser.add_argument("--to", required=True, choices=["mlflow", "wandb"], help="which tracker")
    parser.add_argument("--uri", metavar="URI", help="MLflow: where it tracks (default: MLFLOW_TRACKING_URI)")
    parser.add_argument("--project", metavar="NAME", help="W&B: the project (default: recompute-orchestrator)")
    parser.add_argument("--offline", action="store_true", help="W&B: into a folder, for `wandb sync`")
    parser.add_argument("--dir", metavar="DIR", help="W&B: where its files go (default: the results folder)")
    add_results_flag(parser)


def run(args: argparse.Namespace) -> int:
    from orchestrator.cli.rows import read_rows
    from orchestrator.report.sinks.outgoing import finished

    if args.to == "mlflow" and (args.offline or args.project):
        raise UsageError("--offline and --project are for --to wandb; MLflow has --uri.")
    if args.to == "wandb" and args.uri:
        raise UsageError("--uri is for --to mlflow; W&B reads WANDB_BASE_URL.")
    runs = finished(read_rows(args, args.what).rows)
    new = 0
    try:
        sink = _sink(args)
        for one in runs:
            new += sink.send(one)
    except OrchestratorError:
        raise
    except Exception as error:  # whatever a tracker's library raises is its failure, not ours
        raise EnvironmentFailure(
            f"{args.to} did not take all of it ({type(error).__name__}: {error}); {new} were sent. "
            "The same command sends the rest."
        ) from error
    if args.json:
        print(json.dumps({"to": args.to, "new": new, "known": len(runs) - new}))
    else:
        print(f"{args.to}: {new} new, {len(runs) - new} known")
    return 0


def _sink(args: argparse.Namespace) -> Sink:
    if args.to == "mlflow":
        from orchestrator.report.sinks.mlflow import MlflowSink

        return MlflowSink(args.uri)
    from orchestrator.report.sinks.wandb import WandbSink

    folder = Path(args.dir) if args.dir else locate(args).results_dir or Path(RESULTS)
    return WandbSink(args.project, folder, offline=args.offline)
