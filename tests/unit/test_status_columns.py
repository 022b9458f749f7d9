"""The columns of `status` account for every trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.report.status import studies_table
from orchestrator.store.overview import NO_OUTCOME, StudyProgress


def test_every_trial_of_a_study_is_in_one_column() -> None:
    states = {"ended": 4, NO_OUTCOME: 3, "planned": 1, "running": 1}
    study = StudyProgress("demo", 1.0, 9, states, {"pass": 1, "OOM-fwd": 2, "failed:import_error": 1})
    (row,) = studies_table([study]).rows
    trials, *others = (0 if cell == "-" else int(cell) for cell in row[1:])
    assert trials == sum(others) == 9


def test_published_rows_without_an_outcome_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    assert main(["import", "published", "llama3-70b-sft"]) == 0
    capsys.readouterr()
    assert main(["status"]) == 0
    header, row = capsys.readouterr().out.splitlines()[:2]
    shown = dict(zip(header.split(), row.split(), strict=True))
    assert (shown["trials"], shown["OOM"], shown["no-outcome"]) == ("5", "2", "3")
