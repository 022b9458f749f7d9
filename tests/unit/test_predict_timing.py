"""What recompute costs in time, against what was measured."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.compose import compose
from orchestrator.predict.job import Batch, Job, Recompute
from orchestrator.predict.read import read_effective, read_job
from orchestrator.predict.timing import H100, StepTime, cost_of, speed_from_control, step_time

DATA = Path(__file__).parent.parent / "data"
RECORDED = [json.loads(line) for line in (DATA / "h200_recorded_moonlight16L.jsonl").read_text().splitlines()]
STUDY = [json.loads(line) for line in (DATA / "h200_1gpu_moonlight16L.jsonl").read_text().splitlines()]


def control() -> Job:
    return read_effective(RECORDED[0]["effective"], 1)


def mean_seconds(row: dict[str, Any]) -> float:
    return statistics.mean(one["milliseconds"] for one in row["iterations"][1:]) / 1000


def predicted(modules: set[str], seconds: float) -> StepTime:
    job = replace(control(), recompute=Recompute("selective", frozenset(modules)))
    return step_time(job, speed_from_control(control(), seconds), seconds)


def test_what_moe_added_on_an_h200_is_within_the_predicted_range() -> None:
    before, after = mean_seconds(RECORDED[0]), mean_seconds(RECORDED[1])
    found = predicted({"moe"}, before)
    assert found.low <= after <= found.high


def test_what_mla_up_proj_added_on_an_h200_is_within_the_predicted_range() -> None:
    before, after = (statistics.mean(STUDY[row]["step_ms"][5:]) / 1000 for row in (0, 1))
    found = predicted({"mla_up_proj"}, before)
    assert found.low <= after <= found.high


def test_the_control_replays_nothing() -> None:
    cost = cost_of(control())
    assert (cost.replayed_flops, cost.replayed_touched, cost.replayed_sent, cost.replays) == (0, 0, 0, 0)
    assert predicted(set(), 1.8).expected == pytest.approx(1.8)


def test_full_recompute_replays_a_third_of_a_step_less_what_the_output_layer_computes() -> None:
    full = replace(control(), recompute=Recompute("full", frozenset(), "uniform", 1))
    assert 0.3 < cost_of(full).replayed_share < 1 / 3


def test_operations_grow_with_the_batch() -> None:
    job = control()
    twice = replace(job, batch=Batch(job.batch.seq_length, 2 * job.batch.micro_batch, 2 * job.batch.global_batch))
    assert cost_of(twice).flops == pytest.approx(2 * cost_of(job).flops)


def test_operations_of_a_step_agree_with_the_frameworks_own_count() -> None:
    """Bridge reported 346 TFLOP/s in a step of 1.775 s: 614 TFLOP."""
    assert cost_of(control()).flops == pytest.approx(346.3554e12 * 1.7749611749999872, rel=0.02)


@pytest.mark.parametrize(("study", "seconds"), [("moonlight_16b_h100", 0.45718), ("nemotron3_nano_h100", 0.65742)])
def test_published_steps_with_experts_over_ranks_lie_in_the_range_that_nobody_measured(
    study: str, seconds: float
) -> None:
    """On H100: 77.5 TFLOP/s a GPU for Moonlight, far below what its products reach."""
    request = compose([f"study={study}", "study.candidates=[]", "recompute=control"])
    found = step_time(read_job(request).job, H100)
    assert found.low <= seconds <= found.high
    assert found.expected == pytest.approx(seconds, rel=0.2)
