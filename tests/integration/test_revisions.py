"""Pinned revisions: a worktree a commit, first on the ranks' path, checked on every rank."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.errors import UsageError
from orchestrator.dispatch.attempt import attempt_dirs, judge, rank_records, read_attempt, read_spec
from orchestrator.dispatch.batch import Ask
from orchestrator.dispatch.handover import hand_over
from orchestrator.dispatch.submit import wait_for_end
from orchestrator.plan.candidate import Candidate, trial_id

pytestmark = pytest.mark.integration

TRAINER = """
import megatron.core


def train(spec, recorder, rank, world_size, local_rank):
    recorder.facts(software={"megatron_core": {"version": megatron.core.REVISION}})
    recorder.optimizer_state_exists()
    recorder.begin_iteration(1)
    recorder.end_iteration(1.0, 2.0)
    recorder.measured()
"""


def git(repository: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, "-C", str(repository), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with two commits of a `megatron.core` that says which one it is; its head is the second."""
    folder = tmp_path / "clone"
    package = folder / "megatron" / "core"
    package.mkdir(parents=True)
    git(folder, "init", "--quiet")
    for revision in ("first", "second"):
        (package / "__init__.py").write_text(f"REVISION = {revision!r}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", revision)
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "pinned_trainer.py").write_text(TRAINER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "trainers"))
    return folder


def run(results: Path, **revisions: Any) -> Path:
    """One trial on these pins; its attempt's folder."""
    request = {
        "recompute_granularity": "selective",
        "recompute_modules": [],
        "parallelism": {"world_size": 2},
        "training": {"train_iters": 1, "steady_window": [1, 1]},
        "trainer": {"name": "pinned_trainer:train"},
        "cluster": {"kind": "local"},
        "revisions": revisions,
    }
    candidate = Candidate("control", request)
    ask = Ask(trial_id(candidate), candidate)
    (batch,) = hand_over([ask], request, "study", results).batches
    assert wait_for_end(results, batch.batch, 60)
    return attempt_dirs(results, ask.trial)[-1]


def label(folder: Path) -> str | None:
    record, spec = read_attempt(folder), read_spec(folder)
    assert record is not None
    assert spec is not None
    return judge(record, spec).label


def test_ranks_import_the_pinned_commit_and_not_the_clones_head(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD~1")
    folder = run(tmp_path / "results", megatron_core=commit, megatron_core_repository=str(repository))
    assert label(folder) == "pass"
    assert [record.software["megatron_core"]["version"] for record in rank_records(folder).values()] == ["first"] * 2


def test_a_changed_worktree_is_a_mismatch(repository: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    pins = {"megatron_core": git(repository, "rev-parse", "HEAD"), "megatron_core_repository": str(repository)}
    run(results, **pins)
    (worktree,) = (results / "worktrees").iterdir()
    (worktree / "megatron" / "core" / "__init__.py").write_text("REVISION = 'mine'\n")
    folder = run(results, **pins)
    assert label(folder) == "failed:revision_mismatch"
    said = [record.exception.message for record in rank_records(folder).values() if record.exception is not None]
    assert said, "the first rank to look says so, and the others are ended"
    assert all("dirty" in message for message in said)


def test_another_commit_in_the_worktree_is_a_mismatch(repository: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    pins = {"megatron_core": git(repository, "rev-parse", "HEAD"), "megatron_core_repository": str(repository)}
    run(results, **pins)
    (worktree,) = (results / "worktrees").iterdir()
    git(worktree, "checkout", "--quiet", "--detach", "HEAD~1")
    folder = run(results, **pins)
    assert label(folder) == "failed:revision_mismatch"


def test_a_commit_that_the_clone_does_not_have_is_refused_before_anything_runs(
    repository: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"has no commit feedbeef.*fetch it"):
        run(tmp_path / "results", megatron_core="feedbeef", megatron_core_repository=str(repository))
    with pytest.raises(UsageError, match=r"megatron_core_repository"):
        run(tmp_path / "results", megatron_core="feedbeef")
    assert not (tmp_path / "results" / "batches").exists()
