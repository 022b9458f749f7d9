"""Settings that nobody has checked: a prediction is made of them, or says what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from orchestrator.cli.main import main
from orchestrator.predict.fields import READ
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.read import read_effective, read_job
from orchestrator.predict.recipes import KNOWN, recipe_of
from orchestrator.predict.verdict import range_of

RECORDED = Path(__file__).parent.parent / "data" / "h200_recorded_moonlight16L.jsonl"
EFFECTIVE = json.loads(RECORDED.read_text().splitlines()[0])["effective"]
NAMES = sorted((section, name) for section, names in READ.items() for name in names)
ODD = st.sampled_from(
    [None, 0, 1, -1, 2, 3, 7, 64, "x", "", [], [0], [1] * 16, ["moe"], True, False, 1.5, {}, "recipe", "bf16", "full"]
)


def changed(section: str, name: str, value: Any) -> dict[str, Any]:
    copy = {key: dict(group) for key, group in EFFECTIVE.items()}
    copy.setdefault(section, {})[name] = value
    return copy


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), ODD)
def test_any_value_of_a_setting_is_predicted_or_refused(where: tuple[str, str], value: Any) -> None:
    try:
        job = read_effective(changed(*where, value), 1)
        spread = range_of(job, predict_memory(job))
    except CannotPredictError:
        return
    assert 0 <= spread.low <= spread.expected <= spread.high


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("model", "num_layers", 0, "num_layers=0 must be above zero"),
        ("model", "num_layers", "16", "num_layers='16' is not a whole number"),
        ("model", "tensor_model_parallel_size", 0, "tensor_model_parallel_size=0 must be above zero"),
        ("model", "tensor_model_parallel_size", 2, "do not divide by tp=2"),
        ("model", "context_parallel_size", 3, "do not divide by tp=1 x pp=1 x cp=3"),
        ("model", "expert_model_parallel_size", 3, "the fewest that do are 3"),
        ("model", "virtual_pipeline_model_parallel_size", 2, "vpp=2 needs pp above 1"),
        ("model", "moe_layer_freq", 0, "moe_layer_freq=0 must be above zero"),
        ("model", "moe_layer_freq", [0, 1], "moe_layer_freq lists 2 layers of 16"),
        ("model", "recompute_modules", "moe", "is no list of labels"),
        ("model", "recompute_granularity", "full", "full recompute needs recompute_method"),
        ("model", "fp8", [1], "is no word"),
        ("train", "global_batch_size", 6, "global_batch_size=6 does not divide by micro_batch_size=4"),
    ],
)
def test_what_no_job_can_have_is_refused(section: str, name: str, value: Any, message: str) -> None:
    with pytest.raises(CannotPredictError, match=message):
        read_effective(changed(section, name, value), 1)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("model", "cpu_offloading"),
        ("model", "fine_grained_activation_offloading"),
        ("optimizer", "optimizer_cpu_offload"),
    ],
)
def test_what_moves_to_the_host_is_a_job_whose_memory_is_not_predicted(section: str, name: str) -> None:
    job = read_effective(changed(section, name, True), 1)
    with pytest.raises(CannotPredictError, match=rf"^{section}\.{name} moves memory to the host"):
        predict_memory(job)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--imbalance", "nan"], 2, "is no factor from 1"),
        (["--target-gb", "nan"], 2, "is no size in GB"),
        (["--target-gb", "-3"], 2, "is no size in GB"),
        (["--target-gb", "1e308"], 2, "--target-gb: 1e+308 GB is more than"),
        (["--tensors", "-1"], 2, "below zero"),
        (["--transformer-engine", "new"], 2, "is no version"),
        (["training.micro_batch_size=0"], 3, "micro_batch_size=0 must be above zero"),
    ],
)
def test_the_verb_says_what_is_wrong(
    words: list[str],
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["predict", *words]) == status
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_settings_may_stand_on_both_sides_of_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "recompute=selective", "--target-gb", "1", "recompute_modules=[moe]", "--json"]) == 0
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    assert candidate["name"] == "[moe]"


def test_a_label_of_another_revision_changes_nothing_and_is_named() -> None:
    request = {"trainer": {"name": "bridge"}, "recompute_granularity": "selective", "recompute_modules": ["mhc"]}
    reading = read_job(request, EFFECTIVE)
    nothing = read_job({**request, "recompute_modules": []}, EFFECTIVE)
    assert predict_memory(reading.job).peak == predict_memory(nothing.job).peak
    assert any("no boundary mhc" in note for note in reading.assumed)


@pytest.mark.parametrize("name", KNOWN)
def test_every_recipe_that_is_written_down_can_be_predicted(name: str) -> None:
    """Sizes that a recipe takes from a published model come with the model's preset."""
    from orchestrator.config.compose import composing

    presets = {
        "moonlight_16b_pretrain_config": "moonlight_16b",
        "deepseek_v3_pretrain_config": "deepseek_v3",
        "llama3_70b_pretrain_config": "llama3_70b",
        "llama3_70b_sft_config": "llama3_70b_sft",
        "qwen3_30b_a3b_pretrain_config": "qwen3_30b_a3b",
        "qwen3_next_80b_a3b_pretrain_config": "qwen3_next_80b_a3b",
        "nemotron_3_nano_pretrain_config": "nemotron3_nano",
    }
    with composing() as composer:
        request = composer.compose(["trainer=bridge", f"model={presets[name]}"])
    found = recipe_of(request["model"]["recipe"])
    assert found is not None
    assert found[0] == name
    reading = read_job(request)
    assert predict_memory(reading.job).peak > 10**10
    assert f"as {name} of Megatron Bridge 0.3.1 has them" in reading.assumed[0]
