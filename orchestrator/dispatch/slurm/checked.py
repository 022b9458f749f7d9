"""What a cluster's configuration must not say, since a job of it could not be found again, or no rank could start."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.config.errors import UsageError
from orchestrator.config.schema import SlurmCluster
from orchestrator.dispatch.slurm.parameters import limit_seconds

_POSITIVE = ("nodes", "gpus_per_node", "cpus_per_task", "max_jobs", "trials_per_job", "resolve_minutes")
_NOT_FOR_SBATCH = {
    "job-name": "the job's name carries its batch, by which it is found again",
    "array": "one job is one allocation, with one driver",
    "wrap": "the job's script is ours",
    "wait": "submitting never blocks",
    "test-only": "`dry_run=true` and `sbatch` show what would be submitted",
    "parsable": "what sbatch prints is read",
}
_NOT_FOR_SRUN = {
    "job-name": "the step's name carries its trial, by which it is found again",
    "output": "what ranks print is kept with their records",
    "error": "what ranks print is kept with their records",
    "multi-prog": "every rank runs the same",
    "time": "`trainer.time_limit` is a trial's limit, and its end is told from that of its job",
}


def check_cluster(cluster: SlurmCluster, results_dir: str) -> None:
    """Refuse what cannot work, before anything is written.

    Raises:
        UsageError: names the setting, and says what would work.
    """
    for key in _POSITIVE:
        value = getattr(cluster, key)
        if value is not None and value < 1:
            raise UsageError(f"cluster.{key} must be 1 or more, not {value}.")
    if cluster.time is not None and limit_seconds(cluster.time) is None:
        raise UsageError(
            f"cluster.time={cluster.time} is no time limit: give minutes, or hours:minutes:seconds, or days-hours."
        )
    _refuse(cluster.sbatch, _NOT_FOR_SBATCH, "cluster.sbatch")
    _refuse(cluster.srun, _NOT_FOR_SRUN, "cluster.srun")
    if "%" in results_dir:
        raise UsageError(f"results_dir={results_dir} holds a %, which Slurm replaces in the names of logs.")
    _check_container(cluster, results_dir)


def _refuse(given: Mapping[str, object], refused: Mapping[str, str], setting: str) -> None:
    for key, value in given.items():
        why = refused.get(key.replace("_", "-"))
        if why is not None and value is not None and value is not False:
            raise UsageError(f"{setting}.{key} cannot be set: {why}.")


def _check_container(cluster: SlurmCluster, results_dir: str) -> None:
    container = cluster.container
    if container.kind == "none":
        if container.image:
            raise UsageError(
                f"cluster.container.image={container.image} is used by no step while cluster.container.kind is none: "
                "set it to pyxis or apptainer."
            )
        return
    if not container.image and not (container.kind == "pyxis" and container.name):
        raise UsageError(f"cluster.container.kind={container.kind} needs cluster.container.image.")
    registry, slash, rest = (container.image or "").partition("/")
    if container.kind == "pyxis" and slash and "." in registry.strip(".") and "#" not in (container.image or ""):
        raise UsageError(
            f"cluster.container.image={container.image} names a registry as docker does; pyxis would look for it on "
            f"Docker Hub. Write {registry}#{rest}."
        )
    for place in (results_dir, cluster.local_dir or ""):
        if set(place) & set(",:"):
            raise UsageError(f"{place} cannot be mounted into a container: its name holds a comma or a colon.")
