"""What a plan says of memory, seconds and hours before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.siblings import Sibling, calibration_of
from orchestrator.cli import planning
from orchestrator.config.compose import compose
from orchestrator.plan.candidate import Candidate
from orchestrator.plan.forecast import Earlier, Forecast, forecasts
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.read import read_job
from orchestrator.report.plan import as_json, cost_lines, entry_lines
from orchestrator.store.database import default_url, open_store

MOONLIGHT = ("trainer=bridge", "model=moonlight_16b", "parallelism=moonlight_16b_h100", "recompute=control")


def plan_of(*overrides: str) -> Plan:
    return make_plan("s", [Candidate("one", compose(list(overrides)))], known={})


def only(found: dict[str, Forecast]) -> Forecast:
    (one,) = found.values()
    return one


def test_a_plan_starts_from_the_measured_control_as_predict_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of("recompute_modules=[mlp]")
    job = read_job(plan.new[0].request).job
    control = read_job(compose(["recompute=control"])).job
    sibling = Sibling(control_peak=predict_memory(control).hottest.peak + 10**7, control_step_ms=100.0)
    asked: list[Any] = []
    monkeypatch.setattr(
        "orchestrator.analysis.siblings.find_siblings",
        lambda _, requests: (asked.extend(requests), [sibling for _ in requests])[1],
    )
    with open_store(default_url(tmp_path), write=True) as store:
        earlier = planning.earlier_of(plan, store)
    assert asked[0]["recompute_modules"] == ["mlp"]
    taught, alone = only(forecasts(plan, earlier)), only(forecasts(plan))
    assert taught.memory is not None
    assert alone.memory is not None
    assert calibration_of(job, sibling) is not None
    assert taught.memory.expected > alone.memory.expected + 5 * 10**6
    assert any("as the measured control" in line for line in cost_lines(plan, forecasts(plan, earlier)))


def test_a_recipes_own_batch_costs_minutes_a_step_and_the_plan_says_so() -> None:
    """At the 77.5 TFLOP/s a GPU that the guide measured, 2048 sequences on 8 H100 take about 235 s."""
    plan = plan_of(*MOONLIGHT)
    found = only(forecasts(plan))
    assert found.step is not None
    assert found.hours is not None
    assert found.step.expected == pytest.approx(235, rel=0.05)
    assert found.hours.expected == pytest.approx(10, rel=0.05)
    lines = cost_lines(plan, {"trial": found})
    assert "a step should take 234 s (117 to 352), with training.global_batch_size 2048" in lines


def test_a_measured_step_of_the_control_replaces_the_guess() -> None:
    found = only(forecasts(plan_of(*MOONLIGHT), [Earlier(control_seconds=100.0)]))
    assert found.step is not None
    assert found.step.expected == pytest.approx(100)


@pytest.mark.parametrize(
    ("overrides", "beyond"),
    [
        (("recompute=control", "trainer.memory_limit_gb=0.05"), "trainer.memory_limit_gb=0.05"),
        (("recompute=control", "trainer.memory_limit_gb=5"), None),
        ((*MOONLIGHT, "cluster.gpu_type=A100-SXM-20GB"), "A100-SXM-20GB"),
        ((*MOONLIGHT, "cluster.gpu_type=H100-SXM-80GB"), None),
    ],
)
def test_what_even_the_low_end_is_too_much_for_is_marked_and_runs_all_the_same(
    overrides: tuple[str, ...], beyond: str | None
) -> None:
    plan = plan_of(*overrides)
    predicted = forecasts(plan)
    assert as_json(plan, predicted=predicted)["trials"][0]["will_not_fit"] == beyond
    assert len(plan.new) == 1
    (line,) = entry_lines(plan, predicted)
    assert line.endswith(f", will not fit {beyond}") == (beyond is not None)
    said = any("runs all the same" in line for line in cost_lines(plan, predicted))
    assert said == (beyond is not None)


def test_rules_know_how_many_experts_a_known_recipes_model_has() -> None:
    request = compose([*MOONLIGHT, "parallelism.ep=3", "parallelism.world_size=12"])
    (entry,) = make_plan("s", [Candidate("one", request)], known={}).rejected
    assert any("num_moe_experts=64 is no multiple of parallelism.ep=3" in finding.message for finding in entry.findings)
    assert not plan_of(*MOONLIGHT).rejected
    own = compose([*MOONLIGHT, "parallelism.ep=3", "parallelism.world_size=12", "model.num_moe_experts=66"])
    assert not make_plan("s", [Candidate("one", own)], known={}).rejected
