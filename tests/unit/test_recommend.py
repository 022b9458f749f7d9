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
