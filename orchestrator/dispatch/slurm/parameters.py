"""What is asked of sbatch for one allocation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.config.schema import SlurmCluster
from orchestrator.dispatch.slurm.cluster import Shape, gpu_flag

WARNING_SECONDS = 120
"""How long before the job's time limit its driver is told."""
JOB_PREFIX = "orchestrator-"


def job_name(batch: str) -> str:
    """A job's name carries its batch: accounting keeps names, where by default it drops comments."""
    return f"{JOB_PREFIX}{batch}"


def warning_seconds(time: str | int | None) -> int:
    """How long before its time limit a job's driver is told: two minutes, or a quarter of a short job.

    `time` is the limit as sbatch reads it: minutes, `minutes:seconds`, `hours:minutes:seconds`, or with `days-` before.
    """
    seconds = limit_seconds(time)
    return WARNING_SECONDS if seconds is None else max(1, min(WARNING_SECONDS, seconds // 4))


def limit_seconds(time: str | int | None) -> int | None:
    """A time limit in seconds; None where there is none, or sbatch would refuse it."""
    if time is None:
        return None
    days, dash, clock = str(time).rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or (days and not days.isdigit()) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, minutes, seconds = 0, numbers[0], [*numbers, 0][1]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def job_parameters(
    cluster: SlurmCluster,
    shape: Shape,
    batch: str,
    *,
    parallel_trials: int = 1,
    exclude: Sequence[str] = (),
    dependency: str | None = None,
) -> dict[str, Any]:
    """The parameters of submitit's SlurmExecutor.

    submitit's own signal goes to the steps and never to the batch step, where the driver is: `B:` turns that around.
    Its own 5 minutes are replaced by the site's default where no time is given.
    """
    more: dict[str, Any] = {
        "signal": f"B:USR2@{warning_seconds(cluster.time)}",
        "reservation": cluster.reservation,
        ("requeue" if cluster.requeue else "no-requeue"): True,
        **gpu_flag(cluster),
        **{key.replace("_", "-"): value for key, value in cluster.sbatch.items()},
    }
    parameters: dict[str, Any] = {
        "job_name": job_name(batch),
        "account": cluster.account,
        "partition": cluster.partition,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "exclude": ",".join(dict.fromkeys([*cluster.exclude, *exclude])) or None,
        "dependency": dependency,
        "time": cluster.time,
        "nodes": shape.nodes * max(1, parallel_trials),
        "ntasks_per_node": shape.ranks_per_node,
        "cpus_per_task": cluster.cpus_per_task,
        "mem": None if cluster.mem is None else str(cluster.mem),
        "exclusive": cluster.exclusive or None,
        "wckey": None,
        "stderr_to_stdout": True,
        "use_srun": False,
        "setup": ["set -e", *cluster.driver_setup] if cluster.driver_setup else None,
    }
    # What the user gave sbatch by its own name replaces ours, and null or false drops it.
    for key in more:
        parameters.pop(key.replace("-", "_"), None)
    parameters["additional_parameters"] = {
        key: value for key, value in more.items() if value is not None and value is not False
    }
    return parameters
