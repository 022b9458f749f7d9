"""What a user does wrong, and what fails around them: one clear line each, its exit code, nothing half-written."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.store.database import open_store

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)


def last_line(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    *_, last = captured.err.splitlines()
    assert last.startswith("error: ")
    return last


def only_line(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    return line


def test_an_unknown_module_label_is_answered_with_the_nearest_and_the_allowed_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = only_line(["recompute_modules=[core_atn]"], 2, capsys)
    assert "did you mean core_attn?" in line
    for label in ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"):
        assert label in line
    assert list(tmp_path.iterdir()) == []


def test_batch_sizes_that_do_not_divide_name_sizes_that_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = only_line(["training.global_batch_size=7"], 2, capsys)
    assert "training.global_batch_size=7" in line
    assert "6, 8" in line
    assert list(tmp_path.iterdir()) == []


def test_a_grid_of_which_nothing_is_valid_lists_every_reason_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["-m", "training.global_batch_size=7,5"]) == 2
    shown = capsys.readouterr().err
    assert "global_batch_size=7" in shown
    assert "global_batch_size=5" in shown
    assert shown.splitlines()[-1] == "error: None of the 2 candidates is valid, so there is nothing to run."
    assert list(tmp_path.iterdir()) == []


def test_a_plan_shows_what_is_valid_and_what_is_not_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["-m", "recompute_modules=[],[mo]", "dry_run=true"]) == 0
    shown = capsys.readouterr().out
    assert "2 trials, 1 to run, 1 rejected" in shown
    assert "did you mean moe?" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/dev/null/results", "/proc/results"])
def test_a_results_folder_that_cannot_be_written_is_named(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = last_line([f"results_dir={folder}"], 1, capsys)
    assert folder in line
    assert "results_dir" in line


def test_a_results_folder_that_others_can_write_is_not_trusted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert "belongs to another user" in last_line(["training.seed=3"], 1, capsys)
    assert list((tmp_path / "results").iterdir()) == []


def test_a_locked_database_is_named_and_nothing_is_lost(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.database.BUSY_SECONDS", 0.2)
    database = new_database(tmp_path)
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    line = last_line(["training.seed=3"], 1, capsys)
    holder.execute("ROLLBACK")
    holder.close()
    assert str(database) in line
    assert "locked" in line
    assert not (tmp_path / "results" / "batches" / "batch.json").exists()


def test_a_database_of_a_newer_release_is_left_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    database = new_database(tmp_path)
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'later'")
    assert "newer release" in last_line(["training.seed=3"], 1, capsys)
    assert "newer release" in last_line(["training.seed=3", "dry_run=true"], 1, capsys)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("later",)


def test_a_disk_that_fills_while_a_plan_is_written_leaves_no_half_of_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    line = last_line(["training.seed=3"], 1, capsys)
    assert "No space left" in line
    assert list((tmp_path / "results" / "plans").iterdir()) == []
    assert not list(tmp_path.rglob("batch.json"))


def test_a_database_that_is_none_hides_its_password(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = only_line(["--db", "mysql://user:hidden@host/x", "training.seed=3"], 2, capsys)
    assert "hidden" not in line
    assert "sqlite:///PATH" in line
    assert list(tmp_path.iterdir()) == []


def new_database(folder: Path) -> Path:
    path = folder / "results" / "store.sqlite"
    path.parent.mkdir(mode=0o700)
    open_store(path, write=True).close()
    return path
