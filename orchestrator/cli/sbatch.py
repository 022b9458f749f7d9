"""`sbatch`: the exact script of a job."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.config.multirun import Composed

_NO_SOFTWARE = (
    "note: the software of the job is not known here, so the trial's id names none, as a run's from here would not; "
    "`revisions` pins it"
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sbatch",
        help="the exact script of a job, to be read or submitted by hand",
        description="Prints the script of a job that runs the candidates behind their control: what cluster=slurm "
        "would submit, complete in itself. `sbatch` takes it, and `collect` takes in what it leaves. Submits nothing.",
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as for a run; cluster=slurm unless said")
    parser.add_argument("--candidate", metavar="NAME", help="only this one of a study or sweep, or one of its repeats")
    parser.add_argument("--config-name", "-cn", metavar="NAME", help="the primary configuration, instead of config")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a conf folder that comes before all others")


def run(given: argparse.Namespace) -> int:
    from orchestrator.cli.place import note
    from orchestrator.cli.planning import Asked, judge, plan_of
    from orchestrator.config.compose import composing
    from orchestrator.config.multirun import expand
    from orchestrator.dispatch.batch import Ask, Controls, make_batches
    from orchestrator.dispatch.secrecy import refuse_secrets
    from orchestrator.dispatch.slurm.script import job_script
    from orchestrator.dispatch.slurm.submission import batch_settings
    from orchestrator.plan.candidate import pins
    from orchestrator.plan.modes import expand_mode
    from orchestrator.plan.plan import Status
    from orchestrator.report.text import plain

    overrides = list(given.overrides)
    if not any(word.lstrip("+").startswith("cluster=") for word in overrides):
        overrides.append("cluster=slurm")
    with composing(given.config_dir, given.config_name) as composer:
        candidate, repeat = _repeat_of(given.candidate)
        chosen = _chosen(candidate, expand_mode(expand(overrides, composer, True)))
    results_dir = Path(chosen[0].request["results_dir"]).expanduser().absolute()
    asked = Asked(tuple(chosen), results_dir, "")
    request = asked.request
    if request["cluster"]["kind"] != "slurm":
        raise UsageError(f"sbatch needs a Slurm cluster, and cluster.kind is {request['cluster']['kind']}.")
    refuse_secrets(request)
    judged = judge(asked)
    plan, software = plan_of(asked, None, judged), judged.validation.software
    for text in judged.validation.notes:
        note(f"note: {text}")
    if not software and not pins(request):
        note(_NO_SOFTWARE)
    for entry in plan.rejected:
        note(f"left out: {plain(entry.name)}: {'; '.join(map(plain, entry.reasons))}")
    asks = [Ask.of(one) for one in plan.entries if one.status not in (Status.REJECTED, Status.DUPLICATE)]
    if not asks:
        raise UsageError("Every candidate is refused: see above. There is no job to print.")
    asks = [one for one in asks if repeat is None or one.repeat == repeat]
    if not asks:
        raise UsageError(f"There is no {given.candidate!r}: study.repeats is {request['study']['repeats']}.")
    settings = batch_settings(request, plan.study, results_dir, software, package=None)
    settings = replace(settings, controls=Controls.of(plan))
    try:
        batches = make_batches(asks, settings)
    except ValueError as error:
        raise UsageError(f"{error}.") from error
    if len(batches) > 1:
        raise UsageError(
            f"{len(asks)} trials make {len(batches)} jobs, by their sizes and what a job may hold; print one "
            "at a time with --candidate NAME, or raise cluster.trials_per_job."
        )
    (batch,) = batches
    script = job_script(batch)
    print(json.dumps({"batch": batch.batch, "script": script}, indent=2) if given.json else script)
    return 0


def _repeat_of(name: str | None) -> tuple[str | None, int | None]:
    """A candidate's name and which of its repeats, as plans name them; None for all of them."""
    found = re.fullmatch(r"(.+) \(repeat (\d+)\)", name or "")
    return (found[1], int(found[2])) if found else (name, None)


def _chosen(name: str | None, composed: Sequence[Composed]) -> list[Composed]:
    """The candidate of that name, or all.

    Raises:
        UsageError: none has it.
    """
    found = [one for one in composed if name is None or name in (one.name, one.name.strip("[]"))]
    if not found:
        raise UsageError(f"There is no candidate {name!r} here; there is {', '.join(one.name for one in composed)}.")
    return found
