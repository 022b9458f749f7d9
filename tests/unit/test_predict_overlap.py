"""Predictions where gradients are reduced inside backward: Qwen3 30B-A3B cut to 8 layers and 32 experts on one H200."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.compose import compose
from orchestrator.predict.calibrate import calibrate
from orchestrator.predict.job import Job
from orchestrator.predict.memory import RankMemory, predict_memory
from orchestrator.predict.read import read_job
from orchestrator.vocabulary import Stage

ROWS = [
    row
    for line in (Path(__file__).parent.parent / "data" / "h200_1gpu_llama_qwen3.jsonl").read_text().splitlines()
    if (row := json.loads(line))["model"] == "qwen3_30b_a3b"
]
WITHIN = 0.0003
"""Share of the measured peak."""


def job_of(words: list[str]) -> Job:
    return read_job(compose(words), transformer_engine="2.11.0").job


def name_of(row: dict[str, Any]) -> str:
    return str(row["overrides"][-1])


@pytest.fixture(scope="module")
def jobs() -> dict[str, Job]:
    return {name_of(row): job_of(row["overrides"]) for row in ROWS}


def test_a_control_and_a_candidate_were_measured() -> None:
    assert sorted(name_of(row) for row in ROWS) == ["recompute_modules=[]", "recompute_modules=[moe]"]


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_peaks_of_every_stage(row: dict[str, Any], jobs: dict[str, Job]) -> None:
    memory = predict_memory(jobs[name_of(row)]).ranks[0]
    assert memory.first[Stage.MODEL_BUILD] == pytest.approx(max(row["setup"].values()), rel=WITHIN)
    for window, expected in (("first", memory.first), ("later", memory.steady)):
        measured = {Stage(name): peak for name, peak in row[window].items()}
        for stage in expected.keys() & measured.keys():
            assert expected[stage] == pytest.approx(measured[stage], rel=WITHIN), (window, stage)


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_reduction_begins_inside_backward_but_in_the_first_iteration(
    row: dict[str, Any], jobs: dict[str, Job]
) -> None:
    memory = predict_memory(jobs[name_of(row)]).ranks[0]
    optimizer = memory.state.state
    assert row["later"]["grad_sync"] - row["first"]["grad_sync"] > 1.2 * optimizer
    assert memory.steady[Stage.GRAD_SYNC] - memory.first[Stage.GRAD_SYNC] > 1.2 * optimizer
    assert memory.steady[Stage.GRAD_SYNC] <= memory.steady[Stage.BACKWARD]


def behind(memory: RankMemory) -> bool:
    return memory.steady[Stage.GRAD_SYNC] - memory.first[Stage.GRAD_SYNC] < 1.05 * memory.state.state


def test_without_overlap_it_begins_behind_backward(jobs: dict[str, Job]) -> None:
    job = jobs["recompute_modules=[]"]
    assert behind(predict_memory(replace(job, numerics=replace(job.numerics, overlap_grad_reduce=False))).ranks[0])


def test_later_pipeline_stages_reduce_their_one_bucket_behind_backward(jobs: dict[str, Job]) -> None:
    job = jobs["recompute_modules=[]"]
    first, last = predict_memory(replace(job, layout=replace(job.layout, world=2, pp=2))).ranks
    assert not behind(first)
    assert behind(last)


def test_a_communication_overlap_of_a_recipe_needs_several_data_parallel_ranks() -> None:
    """Llama's recipe asks for both; its CommOverlapConfig takes it back where there is one rank."""
    words = ["trainer=bridge", "model=llama3_70b", "parallelism=llama3_70b_sft_h100"]
    assert job_of([*words, "parallelism.world_size=32"]).numerics.overlap_grad_reduce
    assert not job_of([*words, "parallelism.world_size=16"]).numerics.overlap_grad_reduce


def test_a_stage_inside_backward_does_not_pass_for_what_is_alive_without_activations(jobs: dict[str, Job]) -> None:
    row = next(row for row in ROWS if name_of(row) == "recompute_modules=[]")
    stages = {Stage(name): max(peak, row["first"].get(name, 0)) for name, peak in row["later"].items()}
    stages.pop(Stage.TEARDOWN, None)
    taught = calibrate(predict_memory(jobs[name_of(row)]).ranks[0], peak=max(stages.values()), stages=stages)
    assert taught.base == 0
    assert taught.scale == pytest.approx(1.0, abs=0.001)
