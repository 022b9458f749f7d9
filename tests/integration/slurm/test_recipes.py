"""A recipe that this machine cannot build is asked on a node, once, before the study is planned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bed import Bed, slurm, until

from orchestrator.dispatch.submit import batch_dirs, read_batch

pytestmark = pytest.mark.integration

ON_NODES = Path(__file__).parent / "on_nodes"
"""Where the recipe's framework lies, which only the setup lines of the cluster lead to."""
RECIPE = "megatron.bridge.recipes_of_tests.two_stages"


def words_of(results: Path, setup: str = f"export PYTHONPATH={ON_NODES}") -> list[str]:
    return [
        "trainer=bridge", f"model.recipe={RECIPE}", "recompute=control",
        "cluster=slurm", "cluster.gpus_per_node=1", "cluster.gpu_option=none", f"cluster.setup=['{setup}']",
        "cluster.time=5", "+cluster.sbatch.begin=now+1hour", f"results_dir={results}",
    ]  # fmt: skip


def run(results: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, "-m", "orchestrator", *words_of(results, **more), *words]
    return subprocess.run(python, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def asked() -> int:
    """How many steps have asked a recipe so far."""
    return len(slurm("sacct", "-XnPo", "JobID", "--name=orchestrator-resolve", "--starttime=now-1hours").splitlines())


def test_a_recipe_is_asked_on_a_node_once_and_says_how_many_ranks_it_needs(bed: Bed, results: Path) -> None:
    before = asked()
    dry = run(results, "dry_run=true", "--json")
    assert asked() == before, "a dry run starts nothing"
    assert "a node must be asked what the recipe means" in " ".join(json.loads(dry.stdout)["notes"])
    done = run(results)  # the study waits an hour to begin, the question does not
    assert done.returncode == 0, done.stderr
    assert "asking a node what the recipe means" in done.stderr
    (folder,) = batch_dirs(results)
    (trial,) = read_batch(folder).trials
    assert trial.world_size == 2
    assert trial.environment == {"OF_THE_RECIPE": "1"}
    until(lambda: asked() == before + 1)  # accounts lag
    plan: dict[str, Any] = json.loads(run(results, "dry_run=true", "--json").stdout)
    assert [entry["world_size"] for entry in plan["trials"]] == [2], "the answer is kept"
    script = subprocess.run(
        [sys.executable, "-m", "orchestrator", "sbatch", *words_of(results)], capture_output=True, text=True, check=True
    )
    assert '"world_size": 2' in script.stdout
    assert asked() == before + 1


def test_a_node_that_cannot_build_the_recipe_says_why(bed: Bed, results: Path) -> None:
    done = run(results, setup="true")
    assert done.returncode == 2
    assert "No module named 'megatron.bridge'" in done.stderr
    assert "parallelism.world_size is left to the recipe" in done.stderr
    assert not batch_dirs(results)
    refused = run(results, "cluster.partition=nowhere")
    assert "invalid partition" in refused.stderr.lower()
