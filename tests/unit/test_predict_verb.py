"""The verb `predict`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.plan.installation import Installation
from orchestrator.plan.validator import Validation
from orchestrator.plan.verdict import Verdict
from orchestrator.predict.fields import only_read

EFFECTIVE = Path(__file__).parent.parent / "data" / "h200_recorded_moonlight16L.jsonl"
BRIDGE = ["trainer=bridge", "recompute=control"]


@pytest.fixture
def effective(tmp_path: Path) -> str:
    record = EFFECTIVE.read_text().splitlines()[0]
    path = tmp_path / "rank-00000.json"
    path.write_text(record)
    return str(path)


def predict(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["predict", *words]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(predict(capsys, *words, "--json"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_candidate_shows_its_largest_tensors_and_what_labels_would_save(
    capsys: pytest.CaptureFixture[str], effective: str
) -> None:
    text = predict(capsys, *BRIDGE, "--effective", effective, "--target-gb", "60")
    assert "experts' FC1 output" in text
    assert "fusions/fused_bias_swiglu.py" in text
    assert "will not fit" in text
    assert "What one more label would save" in text
    assert "not known: allocator" in text


def test_json_has_every_rank_stage_tensor_and_saving(capsys: pytest.CaptureFixture[str], effective: str) -> None:
    answer = as_json(capsys, *BRIDGE, "--effective", effective)
    (candidate,) = answer["candidates"]
    (rank,) = candidate["ranks"]
    assert rank["later"]["backward"] == candidate["peak"]
    assert sum(tensor["bytes"] for tensor in answer["tensors"]) == rank["kept"]
    saved = {one["label"]: one["kept"] for one in answer["savings"]}
    assert saved["moe_act"] == 16384 * 6 * 1408 * 2 * 15
    assert saved["shared_experts"] == 16384 * (5632 + 2816) * 2 * 15


def test_a_grid_has_a_line_for_each_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    answer = as_json(capsys, "-m", "recompute_modules=[],[moe_act],[moe]")
    peaks = [candidate["peak"] for candidate in answer["candidates"]]
    assert len(peaks) == 3
    assert peaks == sorted(peaks, reverse=True)
    assert "tensors" not in answer


def test_a_named_candidate_of_a_grid_is_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert "tensors" in as_json(capsys, "-m", "recompute_modules=[],[moe_act]", "--candidate", "[moe_act]")


def test_a_recipe_that_nobody_has_asked_says_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trainer=bridge", "model=recipe", "model.recipe=own.recipes.tuned_config", "recompute=control"]
    assert main(["predict", *words]) == 3
    assert "The recipe alone knows this model's sizes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--effective", "nowhere.json"], "could not be read as JSON"),
        (["--imbalance", "0.5"], "is no factor from 1"),
        (["--candidate", "nobody"], "There is no candidate 'nobody'"),
    ],
)
def test_wrong_use_says_what_is_wrong(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["predict", *words]) == 2
    assert message in capsys.readouterr().err


def test_busier_experts_need_more(capsys: pytest.CaptureFixture[str], effective: str) -> None:
    even = as_json(capsys, *BRIDGE, "--effective", effective)
    busy = as_json(capsys, *BRIDGE, "--effective", effective, "--imbalance", "1.5")
    assert busy["candidates"][0]["peak"] > even["candidates"][0]["peak"]


def test_a_ledger_without_predictions_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--ledger"]) == 3
    assert "No prediction has been kept" in capsys.readouterr().err


def test_a_recipe_is_asked_and_bridges_own_estimator_stands_beside_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Megatron Bridge can be imported: its answer has the sizes, and how many ranks it takes."""
    answer = json.loads(EFFECTIVE.read_text().splitlines()[0])["effective"]
    estimate = {"weights_and_optimizer": 30 * 10**9, "activations": None}
    resolved = {"parallelism": {"world_size": 1}}
    verdict = Verdict(ok=True, effective=only_read(answer), estimate=estimate, resolved=resolved)
    monkeypatch.setattr(Installation, "has_bridge", lambda self: True)
    monkeypatch.setattr("orchestrator.plan.validator.validate", lambda asked: Validation(tuple(verdict for _ in asked)))
    words = [*BRIDGE, "model=nemotron3_nano", "parallelism=recipe"]
    text = predict(capsys, *words)
    assert "experts' FC1 output" in text
    assert "own estimator: weights and optimizer 30.000 GB, its formula for activations does not apply" in text
    assert as_json(capsys, *words)["bridge_estimate"] == estimate


def test_a_peak_that_a_label_raises_is_said_to_rise_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    text = predict(capsys, *BRIDGE, "model=moonlight_16b", "parallelism=moonlight_16b_h100")
    (line,) = [line for line in text.splitlines() if line.startswith("moe ")]
    assert "falls by 5." in line
    assert "rises by 57" in line
    assert "A peak rises where a replay makes more at once; or in the optimizer's step" in text


def test_a_range_that_an_unnamed_transformer_engine_widens_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*BRIDGE, "model=moonlight_16b", "parallelism=moonlight_16b_h100"]
    first = predict(capsys, *words).splitlines()[0]
    assert first.startswith("ranges reach 14.")
    assert "--transformer-engine VERSION" in first
    for named in (["--transformer-engine", "2.17.1"], ["revisions=guide_2026_08"]):
        assert "Predicted, not measured" in predict(capsys, *words, *named).splitlines()[0]


def test_what_a_plan_rejects_has_figures_and_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    control, rejected = as_json(capsys, "-m", "recompute_modules=[],[moe_act]")["candidates"]
    assert not any("rejects" in note for note in control["assumed"])
    (note,) = [note for note in rejected["assumed"] if "a plan rejects it" in note]
    assert "grouped" in note
