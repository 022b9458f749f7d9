"""Predictions against rows that were measured on an H200, none of which calibrates anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.predict.job import Job, Recompute
from orchestrator.predict.memory import RankMemory, predict_memory
from orchestrator.predict.read import read_effective
from orchestrator.vocabulary import Stage

DATA = Path(__file__).parent.parent / "data"
STUDY = [json.loads(line) for line in (DATA / "h200_1gpu_moonlight16L.jsonl").read_text().splitlines()]
RECORDED = [json.loads(line) for line in (DATA / "h200_recorded_moonlight16L.jsonl").read_text().splitlines()]


def job_of(effective: Mapping[str, Any]) -> Job:
    return read_effective(effective, 1)


def of_study(row: Mapping[str, Any]) -> RankMemory:
    """The study's model is the recorder's: only the recompute settings differ."""
    modules = frozenset(row["modules"]) if row["granularity"] == "selective" else frozenset()
    recompute = Recompute(row["granularity"], modules, row["method"], row["num_layers"])
    return predict_memory(replace(job_of(RECORDED[0]["effective"]), recompute=recompute)).ranks[0]


def name_of(row: Mapping[str, Any]) -> str:
    return f"{row['granularity']}-{'-'.join(row['modules'])}"


def forward(memory: RankMemory) -> int:
    return memory.first[Stage.FORWARD]


def backward(peaks: Mapping[Stage, int]) -> int:
    """The study's windows do not tell a replay from the backward around it."""
    return max(peaks[Stage.BACKWARD], peaks.get(Stage.REPLAY, 0))


def test_parameters_are_counted_exactly() -> None:
    memory = of_study(STUDY[0])
    assert memory.state.weights == 2 * STUDY[0]["params"]


@pytest.mark.parametrize("row", STUDY, ids=name_of)
def test_forward_peaks_are_within_one_percent(row: Mapping[str, Any]) -> None:
    memory, phases = of_study(row), row["phases"]
    assert forward(memory) == pytest.approx(phases["forward_it0"]["peak_allocated"], rel=0.002)
    if "forward_it1" in phases:
        assert memory.steady[Stage.FORWARD] == pytest.approx(phases["forward_it1"]["peak_allocated"], rel=0.002)


@pytest.mark.parametrize("row", STUDY[1:], ids=name_of)
def test_what_recompute_saves_is_within_a_thousandth(row: Mapping[str, Any]) -> None:
    control = STUDY[0]["phases"]["forward_it0"]["peak_allocated"]
    measured = control - row["phases"]["forward_it0"]["peak_allocated"]
    assert forward(of_study(STUDY[0])) - forward(of_study(row)) == pytest.approx(measured, rel=0.001)


@pytest.mark.parametrize("row", STUDY, ids=name_of)
def test_backward_optimizer_and_setup_peaks_are_within_half_a_percent(row: Mapping[str, Any]) -> None:
    memory, phases = of_study(row), row["phases"]
    assert memory.first[Stage.MODEL_BUILD] == pytest.approx(phases["setup"]["peak_allocated"], rel=0.005)
    assert backward(memory.first) == pytest.approx(phases["backward_it0"]["peak_allocated"], rel=0.005)
    assert memory.first[Stage.OPTIMIZER_STEP] == pytest.approx(phases["optimizer_it0"]["peak_allocated"], rel=0.005)
    if "optimizer_it1" in phases:
        # The study's backward window of later iterations reaches back to the end of the step before.
        later = max(backward(memory.steady), memory.after_step)
        assert later == pytest.approx(phases["backward_it1"]["peak_allocated"], rel=0.005)
        assert memory.steady[Stage.OPTIMIZER_STEP] == pytest.approx(
            phases["optimizer_it1"]["peak_allocated"], rel=0.005
        )


def recorded_stages() -> Iterator[tuple[str, str, int, int]]:
    for row in RECORDED:
        memory = predict_memory(job_of(row["effective"])).ranks[0]
        for peaks, iteration in ((memory.first, row["iterations"][0]), (memory.steady, row["iterations"][1])):
            for stage in iteration["stages"]:
                if (name := Stage(stage["stage"])) in peaks:
                    yield row["trial"], f"{iteration['number']} {name}", peaks[name], stage["peak_allocated"]


@pytest.mark.parametrize(
    ("trial", "stage", "predicted", "measured"), list(recorded_stages()), ids=lambda value: str(value).replace(" ", "-")
)
def test_every_stage_of_our_own_records_is_within_two_percent(
    trial: str, stage: str, predicted: int, measured: int
) -> None:
    assert predicted == pytest.approx(measured, rel=0.02)


def test_a_study_with_a_nested_label_saves_nothing_more_than_the_outer_one() -> None:
    job = job_of(RECORDED[0]["effective"])
    outer = predict_memory(replace(job, recompute=Recompute("selective", frozenset({"moe"})))).ranks[0]
    nested = predict_memory(replace(job, recompute=Recompute("selective", frozenset({"moe", "moe_act"})))).ranks[0]
    assert outer.kept == nested.kept
    assert nested.first[Stage.REPLAY] < outer.first[Stage.REPLAY]


def test_block_recompute_of_half_the_layers_saves_less_than_of_all() -> None:
    job = job_of(RECORDED[0]["effective"])
    kept = [
        predict_memory(replace(job, recompute=Recompute("full", frozenset(), "block", layers))).ranks[0].kept
        for layers in (0, 1, 8, 16)
    ]
    nothing = predict_memory(replace(job, recompute=Recompute("selective"))).ranks[0].kept
    uniform = predict_memory(replace(job, recompute=Recompute("full", frozenset(), "uniform", 1))).ranks[0].kept
    assert nothing == kept[0] > kept[1] > kept[2] > kept[3] == uniform
