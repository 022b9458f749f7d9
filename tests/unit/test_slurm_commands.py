"""What sbatch and srun are asked for, by preset, held in place by golden files (`UPDATE_GOLDEN=1` writes them)."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import _make_sbatch_string

from orchestrator.config.compose import compose
from orchestrator.config.errors import UsageError
from orchestrator.config.schema import Container, SlurmCluster
from orchestrator.dispatch.slurm.cluster import Shape, cluster_of, shape_of
from orchestrator.dispatch.slurm.parameters import job_parameters, limit_seconds, warning_seconds
from orchestrator.dispatch.slurm.step import Ranks, step_command

GOLDEN = Path(__file__).parents[1] / "data" / "slurm"
PRESETS = {
    "slurm": ["cluster=slurm"],
    "h100_bare": ["cluster=h100_bare", "cluster.account=research", "cluster.partition=h100"],
    "h100_pyxis": [
        "cluster=h100_pyxis",
        "cluster.account=research",
        "cluster.partition=h100",
        "cluster.container.mounts=[/data:/data:ro]",
        "+cluster.environment.NCCL_DEBUG=WARN",
    ],
    "apptainer": [
        "cluster=slurm",
        "cluster.container.kind=apptainer",
        "cluster.container.image=/images/nemo.sif",
        "cluster.gpu_option=gres",
        "+cluster.sbatch.gres-flags=enforce-binding",
        "cluster.requeue=false",
        "cluster.exclude=[gpu007]",
        "cluster.driver_setup=[module load slurm]",
    ],
}
RANKS = Ranks(
    name="0123456789abcdef0123-001",
    spec_file="/lustre/me/results/runs/0123456789abcdef0123/001/spec.json",
    results_dir="/lustre/me/results",
    package="/lustre/me/results/rank-packages/feed",
    python="/opt/venv/bin/python",
    port=34567,
    first_on_path=("/lustre/me/worktrees/bridge-1a2b/src",),
    also_mounted=("/lustre/me/worktrees/bridge-1a2b", "/lustre/me/bridge.git"),
)


def preset(name: str) -> SlurmCluster:
    request: dict[str, Any] = compose([*PRESETS[name], "parallelism.world_size=16"])
    return cluster_of(request["cluster"])


def job_text(name: str) -> str:
    cluster = preset(name)
    parameters = job_parameters(cluster, shape_of(cluster, 16), "0123456789ab")
    command = "exec /opt/venv/bin/python -u -m submitit.core._submit /lustre/me/results/batches/0123456789ab/submitit"
    return str(
        _make_sbatch_string(command=command, folder="/lustre/me/results/batches/0123456789ab/submitit", **parameters)
    )


def step_text(name: str) -> str:
    cluster = preset(name)
    environment = sorted(cluster.environment)
    ranks = Ranks(**{**RANKS.__dict__, "environment": environment})
    command = step_command(cluster, shape_of(cluster, 16), ranks, cpus_per_task=12, container_name="orchestrator-77")
    return " \\\n    ".join(shlex.quote(word) for word in command) + "\n"


def check_golden(file: str, text: str) -> None:
    path = GOLDEN / file
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("name", PRESETS)
def test_the_jobs_script_is_the_one_that_was_reviewed(name: str) -> None:
    check_golden(f"{name}.sbatch", job_text(name))


@pytest.mark.parametrize("name", PRESETS)
def test_the_steps_command_is_the_one_that_was_reviewed(name: str) -> None:
    check_golden(f"{name}.step", step_text(name))


def test_a_users_own_word_for_sbatch_replaces_ours_and_null_drops_it() -> None:
    cluster = SlurmCluster(time=60, sbatch={"time": "1:30:00", "mem": "100G", "signal": None})
    parameters = job_parameters(cluster, Shape(1, 8), "b")
    text = _make_sbatch_string(command="x", folder="/f", **parameters)
    assert "#SBATCH --time=1:30:00" in text
    assert text.count("--time=") == 1
    assert "#SBATCH --mem=100G" in text
    assert "B:USR2" not in text


def test_a_users_own_word_for_srun_replaces_ours() -> None:
    command = step_command(SlurmCluster(srun={"cpu-bind": "cores", "mpi": None}), Shape(1, 8), RANKS, cpus_per_task=1)
    assert "--cpu-bind=cores" in command
    assert "--cpu-bind=none" not in command
    assert not any(word.startswith("--mpi") for word in command)


def test_only_our_own_folder_and_pinned_revisions_come_before_the_images_path() -> None:
    container = Container(kind="pyxis", image="i", python="python3")
    command = step_command(SlurmCluster(container=container), Shape(1, 8), RANKS, cpus_per_task=1)
    script = command.index("bash")
    assert command[script + 3] == "python3", "the image's interpreter, not the host's"
    assert command[script + 7 :] == [RANKS.package, *RANKS.first_on_path]
    assert "--no-container-mount-home" in command


@pytest.mark.parametrize(("world", "nodes", "expected"), [(16, None, (2, 8)), (4, None, (1, 4)), (4, 2, (2, 2))])
def test_nodes_follow_from_the_ranks(world: int, nodes: int | None, expected: tuple[int, int]) -> None:
    shape = shape_of(SlurmCluster(nodes=nodes), world)
    assert (shape.nodes, shape.ranks_per_node) == expected


def test_ranks_that_do_not_spread_evenly_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"13 ranks do not spread evenly over 2 nodes.*cluster\.gpus_per_node"):
        shape_of(SlurmCluster(gpus_per_node=8), 13)
    with pytest.raises(UsageError, match=r"16 a node"):
        shape_of(SlurmCluster(nodes=1), 16)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [(90, 5400), ("90", 5400), ("10:30", 630), ("1:00:00", 3600), ("2-0", 172800), ("1-2:30", 95400), ("soon", None)],
)
def test_time_limits_are_read_as_sbatch_reads_them(time: str | int, seconds: int | None) -> None:
    assert limit_seconds(time) == seconds


def test_a_short_job_is_warned_later() -> None:
    assert warning_seconds(None) == warning_seconds(240) == 120
    assert warning_seconds(4) == 60
