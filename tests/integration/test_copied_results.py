"""A results folder that was copied or moved is worked on where it lies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_dispatch_verbs import verb
from test_local_dispatch import processes_of, run, stage_of, start, trial, until

from orchestrator.dispatch.attempt import attempt_dirs
from orchestrator.dispatch.dead import bury_dead_batches
from orchestrator.dispatch.submit import cancel, live_batches, read_batch, wait_for_end
from orchestrator.records import layout
from orchestrator.vocabulary import Stage

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fake_trainer")]


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "results"
    layout.make_private_dir(folder)
    yield folder
    for process in processes_of(folder):
        process.kill()


@pytest.mark.parametrize("moved", [False, True])
def test_retry_runs_in_the_folder_that_it_is_asked_in(results: Path, tmp_path: Path, moved: bool) -> None:
    run(results, trial("t"))
    verb(results, "status")
    here = tmp_path / "here"
    (shutil.move if moved else shutil.copytree)(str(results), str(here))
    verb(here, "retry", "study", "--label", "pass")
    for live in live_batches(here):
        assert wait_for_end(here, live.batch, 60)
    assert len(attempt_dirs(here, "t".ljust(20, "0"))) == 2
    assert len(attempt_dirs(results, "t".ljust(20, "0"))) == (0 if moved else 1)
    assert read_batch(here / "batches" / "b1").results_dir == str(here)


def test_a_copy_neither_cancels_nor_buries_what_runs_in_the_original(results: Path, tmp_path: Path) -> None:
    start(results, trial("t", stage="forward", iteration=1, what="hang"))
    until(lambda: stage_of(results, "t") is Stage.FORWARD)
    verb(results, "status")
    copy = tmp_path / "copy"
    shutil.copytree(results, copy)
    said = verb(copy, "cancel", "--all", code=1)
    assert said.count("\n") == 1
    assert str(copy) in said
    assert f"--results {results}" in said
    assert bury_dead_batches(copy) == []
    (copy / "batches" / "b1").chmod(0o500)
    verb(copy, "cancel", "--all", code=1)
    (copy / "batches" / "b1").chmod(0o700)
    assert [live.batch for live in live_batches(results)] == ["b1"]
    assert stage_of(results, "t") is Stage.FORWARD
    cancel(results, "b1")
    assert wait_for_end(results, "b1", 20)


def test_retry_refuses_a_trial_whose_folder_others_can_write(results: Path) -> None:
    run(results, trial("t"))
    verb(results, "status")
    folder = results / "runs" / "t".ljust(20, "0")
    folder.chmod(0o770)
    assert f"chmod go-w {folder}" in verb(results, "retry", "t", code=1)
    assert len(attempt_dirs(results, folder.name)) == 1
