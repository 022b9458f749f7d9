"""`sbatch`: the exact script of a candidate's job."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from orchestrator.config.errors import UsageError

_NO_SOFTWARE = (
    "note: the software of the job is not known here, so the trial's id names none, as a run's from here would not; "
    "`revisions` pins it"
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sbatch",
        help="the exact script of a candidate's job, to be read or submitted by hand",
        description="Prints the script of a job that runs one candidate behind its control: what cluster=slurm would "
        "submit, complete in itself. `sbatch` takes it, and `collect` takes in what it leaves. Submits nothing.",
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as for a run; cluster=slurm unless said")
    parser.add_argument("--config-name", "-cn", metavar="NAME", help="the primary configuration, instead of config")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a conf folder that comes before all others")


def run(given: argparse.Namespace) -> int:
    from orchestrator.cli.place import note
    from orchestrator.cli.planning import Asked, judge
    from orchestrator.config.compose import composing
    from orchestrator.config.multirun import expand
    from orchestrator.dispatch.batch import Ask, make_batches
    from orchestrator.dispatch.secrecy import refuse_secrets
    from orchestrator.dispatch.slurm.script import job_script
    from orchestrator.dispatch.slurm.submission import batch_settings
    from orchestrator.plan.candidate import pins, trial_id

    overrides = list(given.overrides)
    if not any(word.lstrip("+").startswith("cluster=") for word in overrides):
        overrides.append("cluster=slurm")
    with composing(given.config_dir, given.config_name) as composer:
        (composed,) = expand(overrides, composer, False)
    request = composed.request
    if request["cluster"]["kind"] != "slurm":
        raise UsageError(f"sbatch needs a Slurm cluster, and cluster.kind is {request['cluster']['kind']}.")
    refuse_secrets(request)
    results_dir = Path(request["results_dir"]).expanduser().absolute()
    judged = judge(Asked((composed,), results_dir, ""))
    (candidate,), software = judged.candidates, judged.validation.software
    for text in judged.validation.notes:
        note(f"note: {text}")
    if not software and not pins(request):
        note(_NO_SOFTWARE)
    settings = batch_settings(request, str(request["study"]["name"]), results_dir, software, package=None)
    try:
        (batch,) = make_batches([Ask(trial_id(candidate, 0, software), candidate)], settings)
    except ValueError as error:
        raise UsageError(f"{error}.") from error
    script = job_script(batch)
    print(json.dumps({"batch": batch.batch, "script": script}, indent=2) if given.json else script)
    return 0
