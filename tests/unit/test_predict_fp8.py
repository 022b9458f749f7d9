"""Predictions of jobs in FP8: Llama 3 cut to 4 layers on one H200, with current scaling and FP8 parameters.

Transformer Engine 2.11; Bridge's recipe leaves the first and the last of the layers in BF16.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.compose import compose
from orchestrator.predict.job import Job, Layout
from orchestrator.predict.memory import RankMemory, predict_memory
from orchestrator.predict.read import FP8_MEASURED, read_effective, read_job
from orchestrator.vocabulary import Stage

ROWS = [
    row
    for line in (Path(__file__).parent.parent / "data" / "h200_1gpu_llama_qwen3.jsonl").read_text().splitlines()
    if (row := json.loads(line))["model"] == "llama3_70b"
]
WITHIN = 0.0005
"""Share of the measured peak."""
LAYER = 855_638_016
"""Numbers of a layer's four weights; FC1's are 469,762,048 of them."""
FC1 = 469_762_048


@pytest.fixture(scope="module")
def predicted() -> dict[str, RankMemory]:
    return {name_of(row): predict_memory(read_job(compose(row["overrides"])).job).ranks[0] for row in ROWS}


@pytest.fixture(scope="module")
def job() -> Job:
    return read_job(compose(ROWS[0]["overrides"])).job


def name_of(row: dict[str, Any]) -> str:
    return str(row["overrides"][-1])


def test_a_control_and_a_candidate_were_measured() -> None:
    assert [name_of(row) for row in ROWS] == ["recompute_modules=[]", "recompute_modules=[mlp]"]


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_peaks_of_every_stage(row: dict[str, Any], predicted: dict[str, RankMemory]) -> None:
    memory = predicted[name_of(row)]
    assert memory.first[Stage.MODEL_BUILD] == pytest.approx(max(row["setup"].values()), rel=WITHIN)
    for window, expected in (("first", memory.first), ("later", memory.steady)):
        measured = {Stage(name): peak for name, peak in row[window].items()}
        for stage in expected.keys() & measured.keys():
            assert expected[stage] == pytest.approx(measured[stage], rel=WITHIN), (window, stage)
    assert (Stage.REPLAY in memory.steady) == ("replay" in row["later"])


def test_what_recomputing_the_mlp_saves_of_forward(predicted: dict[str, RankMemory]) -> None:
    control, mlp = ROWS
    measured = control["later"]["forward"] - mlp["later"]["forward"]
    saved = [predicted[name_of(row)].steady[Stage.FORWARD] for row in ROWS]
    assert saved[0] - saved[1] == pytest.approx(measured, rel=0.001)


def test_a_step_copies_the_masters_of_fp8_weights_and_transposes_the_largest(job: Job) -> None:
    """Two of the four layers are in FP8, so that is not a byte for each weight of all four, which is as much."""
    memory = predict_memory(job).ranks[0]
    beyond = memory.first[Stage.OPTIMIZER_STEP] - memory.first[Stage.OPTIMIZER_INIT]
    assert beyond == memory.state.quantising == 2 * (2 * LAYER) + FC1
    measured = ROWS[0]["first"]["optimizer_step"] - ROWS[0]["first"]["optimizer_init"]
    assert 0 <= measured - beyond < 4096


def test_each_data_parallel_rank_copies_its_shard_only(job: Job) -> None:
    alone = predict_memory(job).ranks[0].state
    wide = predict_memory(replace(job, layout=Layout(world=4))).ranks[0].state
    assert wide.quantising == pytest.approx(2 * 2 * LAYER / 4 + min(FC1, 2 * LAYER // 4), rel=0.001)
    assert wide.weights == pytest.approx(alone.weights, rel=0.001), "of FP8 weights, each rank has both copies whole"


def test_tensor_parallel_ranks_quantise_their_part(job: Job) -> None:
    alone = predict_memory(job).ranks[0].state
    split = predict_memory(replace(job, layout=Layout(world=2, tp=2))).ranks[0].state
    assert split.quantising == pytest.approx(alone.quantising / 2, rel=0.001)


def with_recipe(job: Job, **numerics: Any) -> Job:
    return replace(job, numerics=replace(job.numerics, **numerics))


def test_what_a_step_needs_for_other_recipes(job: Job) -> None:
    """Blocks are cast without a transpose; MXFP8 goes through the gradients' buffer; delayed scaling is as current."""

    def quantising(**numerics: Any) -> int:
        return predict_memory(with_recipe(job, **numerics)).ranks[0].state.quantising

    assert quantising(fp8_recipe="delayed") == quantising()
    assert quantising(fp8_recipe="delayed", main_params_in_optimizer=True) == 0
    assert quantising(fp8_recipe="blockwise") == quantising() - FC1
    assert quantising(fp8_recipe="mxfp8") == 0
    assert quantising(fp8_params=False) == 0
    assert quantising(fp8=None, fp8_params=False) == 0


def test_weights_in_bf16_have_quantised_copies_beside_them(job: Job) -> None:
    with_fp8, with_bf16 = (predict_memory(with_recipe(job, fp8_params=params)).ranks[0] for params in (True, False))
    assert with_bf16.state.weights == pytest.approx(with_fp8.state.weights, abs=10**6), "row-wise and column-wise"
    assert with_fp8.state.weight_copies == 0
    assert with_bf16.state.weight_copies == 2 * 2 * LAYER
    assert with_bf16.fixed - with_fp8.fixed == pytest.approx(2 * 2 * LAYER, abs=10**6)


def test_sub_channel_scaling_keeps_its_weights_in_bf16_and_quantises_every_layer() -> None:
    words = [*ROWS[0]["overrides"], "precision.recipe_name=bf16-with-fp8-subchannel-scaling-mixed"]
    numerics = read_job(compose(words)).job.numerics
    assert (numerics.fp8_recipe, numerics.fp8_params) == ("blockwise", False)
    assert not any(kind.unquantised for kind in read_job(compose(words)).job.shapes.layers)


def test_layers_at_both_ends_stay_in_bf16(job: Job) -> None:
    assert [kind.unquantised for kind in job.shapes.layers] == [True, False, False, True]
    every = [*ROWS[0]["overrides"], "+trainer.overrides={model.first_last_layers_bf16: false}"]
    quantised = predict_memory(read_job(compose(every)).job).ranks[0]
    assert quantised.kept < predict_memory(job).ranks[0].kept
    assert quantised.state.quantising == 2 * (4 * LAYER) + FC1


def test_a_finished_configuration_says_what_is_quantised() -> None:
    model = {
        "num_layers": 6, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 512, "seq_length": 128,
        "ffn_hidden_size": 512, "fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param": True,
        "first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 2, "num_layers_at_end_in_bf16": 0,
    }  # fmt: skip
    job = read_effective({"model": model, "train": {"micro_batch_size": 1, "global_batch_size": 2}})
    assert [kind.unquantised for kind in job.shapes.layers] == [True, True, False, False, False, False]
    assert job.numerics.fp8_params


def test_a_prediction_in_fp8_says_what_was_measured() -> None:
    assert FP8_MEASURED in read_job(compose(ROWS[0]["overrides"])).assumed
    assert FP8_MEASURED not in read_job(compose(["recompute=control"])).assumed


def test_the_guides_run_as_its_script_set_it_stands_on_the_optimizers_step() -> None:
    """Published: 55.6 GB with `mlp` and with `core_attn` too. Which rank that is of is not stated."""
    script = ["precision.grad_reduce_in_fp32=false", "+trainer.overrides={model.first_last_layers_bf16: false}"]
    words = ["study=llama3_70b_sft_h100", "study.candidates=[]", "recompute=selective"]
    for modules in ("[mlp]", "[mlp,core_attn]"):
        ranks = predict_memory(read_job(compose([*words, f"recompute_modules={modules}", *script])).job).ranks
        assert {rank.peak_stage for rank in ranks} == {Stage.OPTIMIZER_STEP}
        assert ranks[1].peak == ranks[2].peak == pytest.approx(55.6e9, rel=0.011)
        assert ranks[0].peak == pytest.approx(59.2e9, rel=0.002)
