"""Results folders that were damaged, filled, removed or opened to others under a command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.cli.planning import Asked
from orchestrator.cli.running import Running, refuse_dead, submit
from orchestrator.config.errors import EnvironmentFailure
from orchestrator.dispatch.dead import bury_dead_batches
from orchestrator.records import layout

TRIAL = "a" * 20


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    layout.make_private_dir(folder / "runs" / TRIAL)
    layout.make_private_dir(folder / "batches" / "b1")
    return folder


def asked(results: Path) -> Asked:
    return Asked((), results, str(results / "store.sqlite"))


def test_a_trial_whose_folder_others_can_write_is_not_started(results: Path, capsys: Any) -> None:
    folder = results / "runs" / TRIAL
    folder.chmod(0o770)
    plan = cast(
        "Any", SimpleNamespace(new=[SimpleNamespace(trial=TRIAL, name="t")], known=[], study="s", refused_controls={})
    )
    running = submit(asked(results), plan)
    assert (running.refused, running.own) == ([TRIAL], [])
    assert f"chmod go-w {folder}" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_only_folders_that_nobody_else_can_write_are_trusted(results: Path) -> None:
    assert layout.untrusted_trials(results, [TRIAL, "b" * 20]) == {}
    (results / "runs" / ("c" * 20)).write_text("")
    assert "no folder" in layout.untrusted_trials(results, ["c" * 20])["c" * 20]


def test_stray_files_among_the_runs_do_not_block_the_burial_of_a_damaged_batch(results: Path) -> None:
    (results / "batches" / "b1" / layout.BATCH_FILE).write_text("{")
    (results / "runs" / "stray").write_text("")
    (results / "runs" / TRIAL / "002").write_text("")
    assert bury_dead_batches(results) == ["b1"]


def test_a_driver_that_died_on_a_full_disk_is_said_to_have_had_no_room(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results / "batches" / "b1" / "driver.log").write_text("OSError: [Errno 28] No sp")
    with pytest.raises(EnvironmentFailure) as roomy:
        refuse_dead(asked(results), Running(own=["b1"]))
    assert "free space" not in str(roomy.value)
    full = SimpleNamespace(f_bavail=0, f_frsize=4096, f_favail=9, f_files=9)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(EnvironmentFailure, match=f"file system of {results} has no free space"):
        refuse_dead(asked(results), Running(own=["b1"]))


def test_a_results_folder_that_was_removed_is_said_to_be_gone(results: Path) -> None:
    from orchestrator.report.progress import follow

    shutil.rmtree(results)
    follow(results, ["b1"])
    with pytest.raises(EnvironmentFailure, match=f"{results} is gone"):
        refuse_dead(asked(results), Running(own=["b1"]))
