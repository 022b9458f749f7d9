"""What a measured control teaches predictions of its siblings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.predict.calibrate import calibrate, expect
from orchestrator.predict.job import Experts, Job, Recompute
from orchestrator.predict.memory import RankMemory, predict_memory
from orchestrator.predict.read import read_effective
from orchestrator.predict.verdict import Answer, range_of
from orchestrator.vocabulary import Stage

DATA = Path(__file__).parent.parent / "data"
RECORDED = [json.loads(line) for line in (DATA / "h200_recorded_moonlight16L.jsonl").read_text().splitlines()]


def job() -> Job:
    return read_effective(RECORDED[0]["effective"], 1)


def recomputing(*labels: str) -> RankMemory:
    return predict_memory(replace(job(), recompute=Recompute("selective", frozenset(labels)))).ranks[0]


def measured(row: int) -> dict[Stage, int]:
    found: dict[Stage, int] = {}
    for iteration in RECORDED[row]["iterations"]:
        for stage in iteration["stages"]:
            name = Stage(stage["stage"])
            found[name] = max(stage["peak_allocated"], found.get(name, 0))
    found.pop(Stage.BETWEEN_STEPS)
    return found


def test_the_control_itself_comes_out_as_it_was_measured() -> None:
    stages = measured(0)
    peak = max(stages.values())
    calibration = calibrate(recomputing(), peak=peak, stages=stages)
    assert expect(recomputing(), calibration).peak == peak


def test_a_sibling_is_predicted_better_than_before() -> None:
    """Of a run that has a gigabyte more than the ledger knows, as another release of a library may have."""
    more = 10**9
    stages = {stage: size + more for stage, size in measured(0).items()}
    calibration = calibrate(recomputing(), peak=max(stages.values()), stages=stages)
    truth = max(measured(1).values()) + more
    taught, untaught = expect(recomputing("moe"), calibration).peak, recomputing("moe").peak
    assert abs(taught - truth) < abs(untaught - truth)
    assert taught == pytest.approx(truth, rel=0.002)


def test_a_control_with_busier_experts_raises_its_siblings() -> None:
    busy = Experts(**{**vars(job().shapes.experts), "imbalance": 1.3})
    control = predict_memory(replace(job(), shapes=replace(job().shapes, experts=busy))).ranks[0]
    calibration = calibrate(recomputing(), peak=control.peak)
    assert calibration.scale > 1
    assert expect(recomputing("mla_up_proj"), calibration).peak > recomputing("mla_up_proj").peak


def test_a_peak_below_the_predicted_step_widens_the_range_instead_of_ruling_everything_out() -> None:
    peak = recomputing().state.built + recomputing().state.state + recomputing().state.main_gradients + 2 * 10**9
    calibration = calibrate(recomputing(), peak=peak)
    assert calibration.step_without_copies
    found = expect(recomputing("mla_up_proj"), calibration)
    assert found.low < peak
    assert found.high <= peak * 1.05


def test_answers_are_three() -> None:
    spread = range_of(job(), predict_memory(job()))
    assert spread.low < spread.expected < spread.high
    assert spread.answer(spread.high) is Answer.FITS
    assert spread.answer(spread.expected) is Answer.MAY_FIT
    assert spread.answer(spread.low - 1) is Answer.WILL_NOT_FIT
    assert all(term.why for term in (*spread.terms, *spread.outside))


def test_a_device_needs_more_than_torch_allocates() -> None:
    spread = range_of(job(), predict_memory(job()))
    assert spread.answer(spread.high) is Answer.FITS
    assert spread.answer_device(spread.high) is Answer.MAY_FIT


def test_a_calibrated_range_is_narrower() -> None:
    stages = measured(0)
    prediction = predict_memory(job())
    calibration = calibrate(prediction.ranks[0], peak=max(stages.values()), stages=stages)
    before, after = range_of(job(), prediction), range_of(job(), prediction, calibration)
    assert after.high - after.low < before.high - before.low
