"""One step time for a control that ran several times, whoever is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written_results import write_study

from orchestrator.cli.main import main


@pytest.fixture(autouse=True)
def _two_studies_with_one_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control ran twice in `first`, in two jobs, and once more in a study that came later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    write_study(Path("results"), "first", [[], ["mlp"]], batch="job-1")
    write_study(Path("results"), "first", [[], ["moe"]], batch="job-2", started=2000.0, slower_ms=4.0)
    write_study(Path("results"), "second", [[], ["moe_act"]], batch="job-3", started=3000.0, slower_ms=20.0)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("study", "control_ms"), [("first", 12.025), ("second", 30.025)])
def test_compare_show_and_the_views_say_one_step_time_of_a_control(
    study: str, control_ms: float, capsys: pytest.CaptureFixture[str]
) -> None:
    (group,) = told(capsys, "compare", study)["groups"]
    assert next(row["step_ms"] for row in group["rows"] if row["control"]) == pytest.approx(control_ms)
    for view in ("v_trials", "v_compare"):
        rows = told(capsys, "query", f"SELECT step_ms FROM {view} WHERE study = '{study}' AND is_control")
        assert [row["step_ms"] for row in rows] == [pytest.approx(control_ms)]
    shown = told(capsys, "show", study)["trials"]
    assert [one["step_ms"] for one in shown if one["name"] == "[]"] == [pytest.approx(control_ms)]
    assert main(["show", "control"]) == 0
    assert "in first: 12.02 ms, the median of its runs there" in capsys.readouterr().out


def test_v_compare_holds_a_candidate_against_its_own_jobs_control_and_a_control_against_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = told(capsys, "query", "SELECT name, control_step_ms, step_ms_delta FROM v_compare WHERE study = 'first'")
    found = {row["name"]: (row["control_step_ms"], row["step_ms_delta"]) for row in rows}
    assert found == {
        "[]": (pytest.approx(12.025), 0.0),
        "mlp": (pytest.approx(10.025), pytest.approx(1.0)),
        "moe": (pytest.approx(14.025), pytest.approx(1.0)),
    }


def test_a_controls_passes_in_other_studies_tell_the_noise_and_are_no_runs_of_this_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (group,) = told(capsys, "compare", "second")["groups"]
    found = {row["modules"]: row for row in group["rows"]}
    assert len(found["[]"]["trials"]) == 1
    band = found["moe_act"]["time_delta"]["noise_band"]
    assert (band["passes"], band["drift"]) == (3, pytest.approx(20.0 / (54.075 / 3)))
