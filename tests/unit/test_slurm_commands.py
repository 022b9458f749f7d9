"""What sbatch and srun are asked for, by preset, held in place by golden files (`UPDATE_GOLDEN=1` writes them)."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import _make_sbatch_string

from orchestrator.config.compose import compose
from orchestrator.config.errors import UsageError
from orchestrator.config.schema import Container, SlurmCluster
from orchestrator.dispatch.slurm.checked import check_cluster
from orchestrator.dispatch.slurm.cluster import Shape, cluster_of, shape_of
from orchestrator.dispatch.slurm.parameters import job_parameters, limit_seconds, warning_seconds
from orchestrator.dispatch.slurm.recipes import RecipeNode, why_not
from orchestrator.dispatch.slurm.step import Ranks, question_command, step_command

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


def question_text(name: str, *, held: bool = False) -> str:
    ranks = Ranks(**{**RANKS.__dict__, "name": "orchestrator-resolve", "spec_file": "-some.module", "port": 0})
    command = question_command(preset(name), ranks, held=held)
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


@pytest.mark.parametrize("name", PRESETS)
def test_the_command_that_asks_a_recipe_is_the_one_that_was_reviewed(name: str) -> None:
    check_golden(f"{name}.question", question_text(name))


def test_in_an_allocation_that_is_held_a_recipe_is_asked_beside_what_runs() -> None:
    words = question_text("h100_pyxis", held=True)
    assert "--overlap" in words
    assert "--partition" not in words
    assert "--time" not in words


def test_the_same_node_is_asked_again_when_its_image_or_pins_change_and_not_for_a_time_limit(tmp_path: Path) -> None:
    def key(*words: str) -> str:
        node = RecipeNode.of(compose([*PRESETS["h100_pyxis"], *words]), tmp_path)
        assert node is not None
        return node.key()

    image = tmp_path / "nemo.sqsh"
    image.write_text("1")
    first = key(f"cluster.container.image={image}")
    assert key(f"cluster.container.image={image}", "cluster.time=7", "cluster.partition=other") == first
    assert key("revisions.bridge=0123abc") != key()
    assert key("cluster.setup=['true']") != key()
    image.write_text("22")
    assert key(f"cluster.container.image={image}") != first
    assert RecipeNode.of(compose(["cluster=local"]), tmp_path) is None


def test_a_secret_in_a_setup_line_is_refused_before_a_recipe_is_asked(tmp_path: Path) -> None:
    node = RecipeNode.of(
        compose(["cluster=slurm", "cluster.setup=['export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345']"]), tmp_path
    )
    assert node is not None
    with pytest.raises(UsageError, match="holds a secret"):
        node.ask("", "some.module", 1)
    assert not list(tmp_path.iterdir())


def test_a_step_that_fails_is_told_of_in_the_words_that_matter() -> None:
    started = "srun: job 7 queued and waiting for resources\nsrun: job 7 has been allocated resources\n"
    ended = "srun: error: node1: task 0: Exited with exit code 1\n"
    assert why_not(f"{started}Traceback\nModuleNotFoundError: No module named 'x'\n{ended}").startswith("ModuleNot")
    assert why_not("srun: error: Unable to allocate resources: Invalid account\n").endswith("Invalid account")
    assert why_not("") == "it said nothing"


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


def test_without_a_container_ranks_may_have_an_interpreter_of_their_own() -> None:
    command = step_command(SlurmCluster(rank_python="/venv/bin/python"), Shape(1, 8), RANKS, cpus_per_task=1)
    assert command[command.index("bash") + 3] == "/venv/bin/python"
    in_image = SlurmCluster(rank_python="/venv/bin/python", container=Container(kind="pyxis", image="i"))
    assert "/venv/bin/python" not in step_command(in_image, Shape(1, 8), RANKS, cpus_per_task=1)


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


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (SlurmCluster(max_jobs=0), "cluster.max_jobs must be 1 or more"),
        (SlurmCluster(trials_per_job=-1), "cluster.trials_per_job must be 1 or more"),
        (SlurmCluster(nodes=0), "cluster.nodes must be 1 or more"),
        (SlurmCluster(time="soon"), "cluster.time=soon is no time limit"),
        (SlurmCluster(sbatch={"job_name": "mine"}), "its batch, by which it is found again"),
        (SlurmCluster(sbatch={"array": "1-3"}), "one driver"),
        (SlurmCluster(srun={"job-name": "mine"}), "its trial, by which it is found again"),
        (SlurmCluster(container=Container(kind="pyxis")), "needs cluster.container.image"),
        (SlurmCluster(container=Container(image="x.sif")), "set it to pyxis or apptainer"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_before_anything_is_written(cluster: SlurmCluster, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check_cluster(cluster, "/results")


@pytest.mark.parametrize("image", ["nvcr.io#nvidia/nemo:25.11", "/images/my.nemo.sqsh", "./nemo.sqsh", "nvidia/nemo:1"])
def test_an_image_of_another_registry_is_spelt_as_pyxis_reads_it(image: str) -> None:
    with pytest.raises(UsageError, match=re.escape("Write nvcr.io#nvidia/nemo:25.11.")):
        check_cluster(SlurmCluster(container=Container(kind="pyxis", image="nvcr.io/nvidia/nemo:25.11")), "/results")
    check_cluster(SlurmCluster(container=Container(kind="pyxis", image=image)), "/results")


def test_folders_that_slurm_or_a_container_would_read_otherwise_are_refused() -> None:
    with pytest.raises(UsageError, match="holds a %"):
        check_cluster(SlurmCluster(), "/results/50%j")
    with pytest.raises(UsageError, match="comma or a colon"):
        check_cluster(SlurmCluster(container=Container(kind="apptainer", image="x.sif")), "/results/a,b")
    check_cluster(SlurmCluster(sbatch={"job-name": None}), "/results/a,b")
