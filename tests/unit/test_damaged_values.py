"""Databases of other programs, and damaged ones: a value of a wrong type is shown or said, and stops no verb."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from written_results import write_study

from orchestrator.cli.main import main

JSON_COLUMNS = [
    *(("trials", name) for name in ("requested", "target")),
    ("study_trials", "reasons"),
    ("studies", "settings"),
    *(("attempts", name) for name in ("record", "spec", "also_ranks", "rules", "evidence", "notes")),
    *(("attempts", name) for name in ("failed_allocation", "hosts", "losses", "stage_peaks")),
    *(("effective", "content"), ("software", "content")),
]
NUMBERS = [
    "peak_allocated",
    "peak_reserved",
    "step_ms",
    "step_ms_scatter",
    "step_gc_ms",
    "tflops_per_gpu",
    "replays",
    "iteration",
]
FOREIGN = [7, 1.5, True, "text", {"a": [1]}, [[1], None], []]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_study(folder / "results", "demo", [[], ["moe"], ["mlp", "moe"]], batch="job-1")
    assert main(["collect", "--results", str(folder / "results")]) == 0
    with sqlite3.connect(folder / "results" / "store.sqlite") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder / "results" / "store.sqlite"


@pytest.fixture
def damaged(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)

    def damage(statement: str, *values: Any) -> str:
        copy = tmp_path / "copy.sqlite"
        shutil.copy(whole, copy)
        with sqlite3.connect(copy) as database:
            assert database.execute(statement, values).rowcount
        return str(copy)

    return damage


def a_trial(database: str) -> str:
    with sqlite3.connect(database) as opened:
        return str(opened.execute("SELECT id FROM trials WHERE NOT is_control").fetchone()[0])


def answers(capsys: pytest.CaptureFixture[str], database: str) -> str:
    """What the verbs print of the study; they answer, or find that nothing qualifies."""
    capsys.readouterr()
    for words in (
        ["compare", "demo"],
        ["recommend", "demo", "--target-gb", "500"],
        ["diagnose", "demo"],
        ["export", "demo", "--format", "skill-card"],
        ["show", a_trial(database)],
    ):
        assert main([*words, "--db", database]) in (0, 3), words
    return capsys.readouterr().out


@pytest.mark.parametrize(("table", "column"), JSON_COLUMNS)
def test_a_column_of_another_shape_stops_no_verb(
    damaged: Any, capsys: pytest.CaptureFixture[str], table: str, column: str
) -> None:
    objects = column in (
        "requested",
        "target",
        "settings",
        "record",
        "spec",
        "failed_allocation",
        "stage_peaks",
        "content",
    )
    answers(capsys, damaged(f"UPDATE {table} SET {column} = ?", '[[1], {"a": 2}]' if objects else "7"))


def test_a_column_that_is_no_json_stops_no_verb(damaged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    changes = "evidence = 'cut {', notes = '', losses = '[[1,', stage_peaks = '{\"forward\": [1]}', spec = 'nil'"
    answers(capsys, damaged(f"UPDATE attempts SET {changes}"))


@pytest.mark.parametrize("value", FOREIGN, ids=repr)
def test_modules_of_any_type_are_shown_as_text(damaged: Any, capsys: pytest.CaptureFixture[str], value: Any) -> None:
    text = json.dumps(value)
    where = "WHERE NOT is_control"
    copy = damaged(f"UPDATE trials SET requested = json_set(requested, '$.recompute_modules', json(?)) {where}", text)
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE attempts SET effective_hash = NULL")
    answers(capsys, copy)
    assert main(["export", "demo", "--format", "json", "--db", copy]) == 0
    shown = [row["recompute"]["modules"] for row in groups_of(capsys)]
    items = value if isinstance(value, list) else [value]
    assert sorted(one if isinstance(one, str) else json.dumps(one) for one in items) in shown


def groups_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [row for group in json.loads(capsys.readouterr().out)["groups"] for row in group["rows"]]


@pytest.mark.parametrize("column", NUMBERS)
def test_a_number_that_is_none_is_left_out_and_said(
    damaged: Any, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    copy = damaged(f"UPDATE attempts SET {column} = 'plenty'")
    assert main(["compare", "demo", "--db", copy]) == 0
    text = capsys.readouterr().out
    if column != "peak_reserved":  # not read where the peaks of stages are known
        assert f"{column} is plenty, and not a" in text.replace("\n", " ")


@pytest.mark.parametrize("group", ["model", "parallelism", "training", "trainer", "revisions", "precision"])
def test_a_group_that_is_none_is_said(damaged: Any, capsys: pytest.CaptureFixture[str], group: str) -> None:
    copy = damaged(f"UPDATE trials SET requested = json_set(requested, '$.{group}', 7)")
    assert f"the request's {group} is 7, and not an object" in answers(capsys, copy).replace("\n", " ")


def test_an_execution_that_no_column_can_hold_holds_up_no_import(
    damaged: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trial = "(SELECT id FROM trials WHERE is_control)"
    copy = damaged(f"UPDATE attempts SET started_at = 'yesterday' WHERE trial_id = {trial}")
    mine = str(tmp_path / "mine.sqlite")
    capsys.readouterr()
    assert main(["import", copy, "--db", mine]) == 0
    shown = capsys.readouterr()
    assert "2 new" in shown.out
    assert "/001: it cannot be stored: could not convert string to float: 'yesterday'" in shown.err
    with sqlite3.connect(mine) as opened:
        assert opened.execute("SELECT COUNT(*) FROM ranks").fetchone() == (4,)
