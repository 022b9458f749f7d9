"""`dry_run=true` with the real Megatron Core: judged by the exact revision, kept, and nothing written but the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from older_megatron import OLDER, older_release

pytestmark = pytest.mark.integration

GRID = ["recompute_modules=[],[core_attn],[mla_up_prj],[moe_act],null", "training.micro_batch_size=2,3"]


def dry_run(folder: Path, *overrides: str, flags: tuple[str, ...] = ("--json",)) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "-m", *overrides, "dry_run=true", *flags]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def told(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return dict(json.loads(ended.stdout))


def test_a_grid_is_judged_by_megatron_core_once_and_shown_without_a_trace(tmp_path: Path) -> None:
    first = dry_run(tmp_path, *GRID)
    assert first.returncode == 0, first.stderr
    plan = told(first)
    assert plan["counts"] == {"new": 2, "known": 0, "rejected": 7, "duplicate": 1, "candidates": 10, "open": 0}
    assert set(plan["rejected_by"]) == {"batch-divides", "recompute-module-label", "moe-act-grouped-gemm"}
    assert "did you mean mla_up_proj?" in plan["rejected_by"]["recompute-module-label"]["example"]
    refused = [item for entry in plan["trials"] for item in entry["findings"] if item["rule"] == "validator"]
    assert any("mla_up_prj" in item["message"] for item in refused)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]

    started = time.monotonic()
    second = dry_run(tmp_path, *GRID)
    assert told(second) == plan
    assert time.monotonic() - started < 60
    (kept,) = (tmp_path / "cache").rglob("*.json")
    assert kept.stat().st_mode & 0o077 == 0


def test_a_pinned_checkout_is_the_revision_that_judges(tmp_path: Path) -> None:
    graphs = ["model.cuda_graph_scope=attn", "model.enable_cuda_graph=true"]
    ended = dry_run(tmp_path, "recompute_modules=[mlp],[]", f"revisions.megatron_core={older_release()}", *graphs)
    assert ended.returncode == 2
    messages = [item["message"] for entry in told(ended)["trials"] for item in entry["findings"]]
    assert any(f"Megatron Core {OLDER} has recomputation with CUDA graphs only as selective" in it for it in messages)


def test_a_study_of_which_nothing_is_left_ends_with_one_line_and_the_fix(tmp_path: Path) -> None:
    ended = dry_run(tmp_path, "recompute_modules=[mlp]", "training.global_batch_size=7", flags=())
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "nearest training.global_batch_size: 6, 8" in ended.stdout


def test_a_plan_for_slurm_ends_with_its_scripts_and_needs_no_slurm(tmp_path: Path) -> None:
    ended = dry_run(tmp_path, "recompute_modules=[],[mlp]", "cluster=slurm", "cluster.account=team", flags=())
    assert ended.returncode == 0, ended.stderr
    assert "#SBATCH --account=team" in ended.stdout
    assert ended.stdout.index("2 to run") < ended.stdout.index("#SBATCH")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize("release", ["installed", OLDER])
def test_labels_are_those_that_the_release_itself_allows(release: str, tmp_path: Path) -> None:
    place = [] if release == "installed" else ["--revision", str(older_release())]
    command = [sys.executable, "-m", "orchestrator", "labels", *place, "--json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True)
    told = json.loads(ended.stdout)
    assert told["asked"] is True
    assert told["megatron_core"].startswith(OLDER) is (release == OLDER)
    assert {"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"} == {
        item["label"] for item in told["labels"]
    }
    assert told["not_in_this_revision"] == ["gdn_norm_out"]
