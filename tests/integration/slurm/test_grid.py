"""A whole study of real Megatron Core across nodes, in each of the ways that Slurm is reached."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bed import FAKE, ROOT, Bed, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ACROSS_NODES = [
    "parallelism.pp=2",
    "parallelism.ep=2",
    "parallelism.world_size=4",
    "training.train_iters=3",
    "training.steady_window=[2,3]",
    "cluster.gpus_per_node=2",
    "cluster.gpu_option=none",
]
TWO_RANKS = [*ACROSS_NODES[3:5], "cluster.gpus_per_node=1", "cluster.gpu_option=none"]
MODULES = ("", "core_attn", "mla_up_proj", "mlp", "moe", "shared_experts")
SIX = "recompute_modules=" + ",".join(f"[{modules}]" for modules in MODULES)


def orchestrator(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(database: Path) -> dict[str, float]:
    """The last iteration's loss by the trial's name; every trial passed."""
    rows: list[dict[str, Any]] = json.loads(
        orchestrator("query", "SELECT name, label, last_loss FROM v_trials", "--db", str(database), "--json")
    )
    assert all(row["label"] == "pass" for row in rows), rows
    return {row["name"]: row["last_loss"] for row in rows}


def test_a_grid_across_two_nodes_has_the_losses_of_one_machine(bed: Bed, results: Path, tmp_path: Path) -> None:
    orchestrator("-m", SIX, *ACROSS_NODES, "cluster=slurm", "cluster.time=30", f"results_dir={results}")
    orchestrator("watch", "--every", "2", "--db", str(results / "store.sqlite"))
    found = losses(results / "store.sqlite")
    assert len(found) == 6
    local = tmp_path / "local"
    keep = [word for word in ACROSS_NODES if not word.startswith("cluster.")]
    orchestrator("recompute=control", *keep, f"results_dir={local}")
    (expected,) = losses(local / "store.sqlite").values()
    assert all(loss == pytest.approx(expected, rel=1e-5) for loss in found.values())


def test_a_script_submitted_by_hand_runs_a_study_in_its_own_allocation(bed: Bed, results: Path, tmp_path: Path) -> None:
    """`cluster=here` inside of a person's own sbatch."""
    done = subprocess.run(
        [
            "sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", f"--output={tmp_path}/%j.log",
            str(ROOT / "slurm" / "venv.sbatch"), "recompute=control",
            *TWO_RANKS[:2], f"results_dir={results}",
        ],
        env={**os.environ, "ORCHESTRATOR_PYTHON": sys.executable, "ORCHESTRATOR_GPU_OPTION": "none"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    log = next(tmp_path.glob("*.log")).read_text()
    assert done.returncode == 0, log
    assert len(losses(results / "store.sqlite")) == 1
    assert "control" in log, "the comparison stands at the end of the job's log"


def test_a_rendered_script_is_complete_in_itself_and_collect_takes_it_in(
    bed: Bed, results: Path, tmp_path: Path
) -> None:
    script = tmp_path / "mine.sbatch"
    script.write_text(
        orchestrator("sbatch", "recompute=control", *TWO_RANKS, "cluster.time=10", f"results_dir={results}")
    )
    subprocess.run(["sbatch", "--wait", str(script)], check=True, cwd=tmp_path, capture_output=True)
    orchestrator("collect", "--results", str(results))
    assert len(losses(results / "store.sqlite")) == 1


def test_a_user_who_is_not_root_can_submit(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With the system's interpreter, since root's may lie where nobody else can look."""
    nobody = pwd.getpwnam("nobody")
    home = Path("/tmp/orchestrator-test-nobody")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    code = home / "code"
    shutil.copytree(ROOT / "orchestrator", code / "orchestrator", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "slurm", code / "slurm")
    shutil.copytree(Path(FAKE), code / "fake", ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "import sys; from pathlib import Path; from bed import submit, wait_over, labels, ask;"
        "results = Path(sys.argv[1]); batch = submit(results, 'control', 'mlp').batches[0].batch;"
        "wait_over(results, batch); print(labels(results, ask(results, 'mlp').trial))"
    )
    try:
        for path in [home, *home.rglob("*")]:
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        done = subprocess.run(
            ["/usr/bin/python3", "-c", script, str(home / "results")],
            user=nobody.pw_uid,
            group=nobody.pw_gid,
            extra_groups=[],
            cwd=home,
            env={
                "HOME": str(home),
                "PATH": "/usr/bin:/bin",
                "SLURM_CONF": os.environ["SLURM_CONF"],
                "PYTHONPATH": os.pathsep.join([str(code), str(code / "fake"), str(code / "fake" / "slurm"), *packages]),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "['pass']"
    finally:
        until(lambda: not subprocess.run(["squeue", "-hu", "nobody"], capture_output=True, text=True).stdout, 40)
        shutil.rmtree(home, ignore_errors=True)
