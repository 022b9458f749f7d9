"""A job's script that stands alone: to be read, changed and given to sbatch by hand."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.dispatch.slurm.cluster import cluster_of, shape_of
from orchestrator.dispatch.slurm.parameters import job_parameters
from orchestrator.records import layout
from orchestrator.records.jsonfile import encode
from orchestrator.records.redact import redact
from orchestrator.records.spec import Batch

_MARK = "BATCH_OF_ORCHESTRATOR"


def job_script(batch: Batch) -> str:
    """The sbatch script of a batch: the parameters it would be submitted with, the batch itself, and its driver.

    Raises:
        EnvironmentFailure: submitit is missing.
        UsageError: ranks that do not spread over nodes.
    """
    try:
        from submitit.slurm.slurm import _make_sbatch_string
    except ImportError as error:
        raise EnvironmentFailure(f"submitit is not installed ({error}): install the package again.") from error
    cluster = cluster_of(batch.launcher["cluster"])
    folder = layout.batch_dir(Path(batch.results_dir), batch.batch)
    # What a log is called cannot lie in a folder that the script itself makes: Slurm opens it first.
    parameters = job_parameters(
        cluster, shape_of(cluster, batch.trials[0].world_size), batch.batch, parallel_trials=batch.parallel_trials
    )
    parameters["additional_parameters"] = {"output": "orchestrator-%j.log", **parameters["additional_parameters"]}
    text: str = _make_sbatch_string(command="\n".join(_body(batch, folder)), folder=folder, **parameters)
    return text


def _body(batch: Batch, folder: Path) -> list[str]:
    listed = json.dumps(redact(encode(replace(batch, launcher={**batch.launcher, "package": None}))), indent=1)
    python = shlex.quote(str(batch.launcher["python"]))
    where = shlex.quote(str(folder))
    return [
        "set -e",
        "umask 077",
        f"mkdir -p {where}",
        f"cat > {where}/{layout.BATCH_FILE} << '{_MARK}'",
        listed,
        _MARK,
        f"exec {python} -u -m orchestrator.dispatch.slurm.job {where}",
    ]
