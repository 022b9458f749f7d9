"""What a recommendation says about its own choice."""

from __future__ import annotations

import pytest
from measured_rows import row

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.recommend import recommend

TIMES = {"": 101.0, "core_attn": 100.0, "mlp": 150.0}


def said(scatter_ms: float, target: int) -> str:
    rows = [row(label.split(), step_ms=ms, step_scatter_ms=scatter_ms) for label, ms in TIMES.items()]
    (answer,) = recommend(compare(rows), target=target)
    return " ".join(answer.warnings)


def test_recommend_names_what_fits_and_is_not_measurably_slower() -> None:
    warnings = said(scatter_ms=5.0, target=10**12)
    assert "within the noise" in warnings
    assert ": []. Which" in warnings
    assert "mlp" not in warnings


@pytest.mark.parametrize(("scatter_ms", "target"), [(0.1, 10**12), (5.0, 1)])
def test_recommend_is_silent_of_noise_where_nothing_that_fits_is_that_close(scatter_ms: float, target: int) -> None:
    assert "noise" not in said(scatter_ms, target)


def test_recommend_says_that_recomputing_won_by_chance_and_what_to_paste_instead() -> None:
    rows = [row(label.split(), step_ms=ms, step_scatter_ms=5.0) for label, ms in TIMES.items()]
    (answer,) = recommend(compare(rows), target=10**12)
    assert answer.chosen is not None
    assert answer.chosen.text == "core_attn"
    warnings = " ".join(answer.warnings)
    assert "This choice over [] is chance: [] recomputes nothing, fits too, and its step is 1.00 ms longer" in warnings
    assert "to take [] instead: recompute_granularity=selective 'recompute_modules=[]'" in warnings
    assert answer.instead is not None
    assert "cfg.model.recompute_modules = []" in answer.instead.python


def test_recommend_offers_no_other_candidate_that_recomputes_more() -> None:
    rows = [row([], step_ms=100.0, step_scatter_ms=5.0), row(["mlp"], step_ms=101.0, step_scatter_ms=5.0)]
    (answer,) = recommend(compare(rows), target=10**12)
    assert answer.alike is not None
    assert answer.instead is None
