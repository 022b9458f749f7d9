"""The command that starts a trial's ranks as one step, with and without a container. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config.schema import SlurmCluster
from orchestrator.dispatch.slurm.cluster import Shape, gpu_flag, local_dir

RANK_SCRIPT = "rank.sh"
_SBATCH_ALONE = frozenset(
    {"requeue", "no-requeue", "signal", "output", "error", "open-mode", "begin", "deadline", "dependency", "hold"}
)
"""Of sbatch's parameters, what srun lacks, and what is about when a study runs, which a question does not wait for."""


@dataclass(frozen=True)
class Ranks:
    """What every rank of a step is told."""

    name: str
    """Of the step, by which it is found again."""
    spec_file: str
    results_dir: str
    package: str
    """Folder with what runs on a rank: `rank.sh`, and `orchestrator` with vocabulary, records and trial alone."""
    python: str
    """The host's interpreter; a container names its own."""
    port: int
    setup_file: str | None = None
    first_on_path: Sequence[str] = ()
    """Folders of pinned revisions."""
    also_mounted: Sequence[str] = ()
    """What a container must see besides: those revisions' worktrees, and their repositories for git."""
    environment: Sequence[str] = ()
    """Names of variables that must beat the image's own."""


def step_command(
    cluster: SlurmCluster, shape: Shape, ranks: Ranks, *, cpus_per_task: int | None, container_name: str = ""
) -> list[str]:
    """The srun command of one trial, over all its nodes, one task a GPU.

    What newer releases of srun inherit less of is said explicitly: cpus, binding, memory, GPUs, MPI.
    """
    flags: dict[str, str | int | bool | None] = {
        "job-name": ranks.name,
        "nodes": shape.nodes,
        "ntasks": shape.world_size,
        "ntasks-per-node": shape.ranks_per_node,
        "cpus-per-task": cpus_per_task,
        "cpu-bind": cluster.cpu_bind,
        "mem": 0,
        "mpi": cluster.mpi,
        **gpu_flag(cluster),
        "gpu-bind": "none" if cluster.gpu_option != "none" else None,
        "kill-on-bad-exit": 1,
        "export": "ALL",
        "unbuffered": True,
    }
    container = cluster.container
    inner = rank_command(cluster, ranks)
    if container.kind == "pyxis":
        flags |= _pyxis(cluster, ranks, container_name)
    elif container.kind == "apptainer":
        inner = [*_apptainer(cluster, ranks), *inner]
    flags |= {key.replace("_", "-"): value for key, value in cluster.srun.items()}
    extra = list(container.extra_arguments) if container.kind == "pyxis" else []
    return ["srun", *as_flags(flags), *extra, *inner]


def question_command(cluster: SlurmCluster, ranks: Ranks, *, held: bool) -> list[str]:
    """The srun command of a process that builds recipes, on one node as trials have it: in an allocation of its own,
    or with `held` in the one that this shell holds.
    """
    if held:
        return _with_flags(step_command(cluster, Shape(1, 1), ranks, cpus_per_task=None), {"overlap": True})
    of_step = step_command(cluster, Shape(1, 1), ranks, cpus_per_task=cluster.cpus_per_task)
    job: dict[str, str | int | bool | None] = {
        "account": cluster.account,
        "partition": cluster.partition,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "reservation": cluster.reservation,
        "exclude": ",".join(cluster.exclude) or None,
        "exclusive": cluster.exclusive,
    }
    job |= {key.replace("_", "-"): value for key, value in cluster.sbatch.items()}
    job = {key: value for key, value in job.items() if key not in _SBATCH_ALONE}
    return _with_flags(of_step, {**job, "time": cluster.resolve_minutes, "nodes": 1, "mem": cluster.mem})


def rank_command(cluster: SlurmCluster, ranks: Ranks) -> list[str]:
    """What each task runs, inside the container where there is one."""
    bare = cluster.rank_python or ranks.python
    python = bare if cluster.container.kind == "none" else cluster.container.python
    return [
        "bash",
        f"{ranks.package}/{RANK_SCRIPT}",
        ranks.spec_file,
        python,
        str(ranks.port),
        ranks.setup_file or "",
        local_dir(cluster),
        ranks.package,
        *ranks.first_on_path,
    ]


def as_flags(flags: Mapping[str, str | int | bool | None]) -> list[str]:
    """Long options: true is a bare flag, and null or false leaves one out."""
    words = []
    for key, value in flags.items():
        if value is True:
            words.append(f"--{key}")
        elif value is not None and value is not False:
            words.append(f"--{key}={value}")
    return words


def _with_flags(command: Sequence[str], flags: Mapping[str, str | int | bool | None]) -> list[str]:
    """A srun command with these flags in place of its own of the same names."""
    own = [word for word in command[1:] if word.partition("=")[0] not in {f"--{key}" for key in flags}]
    return [command[0], *as_flags(flags), *own]


def mounts(cluster: SlurmCluster, ranks: Ranks) -> list[str]:
    """What a container sees of the host: the results, the node-local folder, pinned revisions, and the user's own."""
    own = [ranks.results_dir, local_dir(cluster), *ranks.also_mounted]
    if not ranks.package.startswith(ranks.results_dir):
        own.append(ranks.package)
    return [*(f"{path}:{path}" for path in dict.fromkeys(own)), *cluster.container.mounts]


def _pyxis(cluster: SlurmCluster, ranks: Ranks, name: str) -> dict[str, str | int | bool | None]:
    container = cluster.container
    home = "container-mount-home" if container.mount_home else "no-container-mount-home"
    return {
        "container-image": container.image,
        "container-name": container.name or name or None,
        "container-mounts": ",".join(mounts(cluster, ranks)),
        "container-workdir": container.workdir,
        "container-writable": container.writable,
        home: True,
        "container-env": ",".join(ranks.environment) or None,
    }


def _apptainer(cluster: SlurmCluster, ranks: Ranks) -> list[str]:
    container = cluster.container
    flags: dict[str, str | int | bool | None] = {
        "nv": cluster.gpu_option != "none",
        "no-home": not container.mount_home,
        "writable-tmpfs": container.writable,
        "bind": ",".join(mounts(cluster, ranks)),
        "pwd": container.workdir,
    }
    return ["apptainer", "exec", *as_flags(flags), *container.extra_arguments, container.image or ""]
