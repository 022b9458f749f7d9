"""What a recommendation says about its own choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_rows import row

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.floor import OPTIMIZER_FLOOR
from orchestrator.analysis.recommend import recommend
from orchestrator.analysis.rows import CUT_SHORT, NOT_RUN, Row, StagePeak
from orchestrator.vocabulary import Stage

TIMES = {"": 101.0, "core_attn": 100.0, "mlp": 150.0}


def said(scatter_ms: float, target: int) -> str:
    rows = [row(label.split(), step_ms=ms, step_scatter_ms=scatter_ms) for label, ms in TIMES.items()]
    (answer,) = recommend(compare(rows), target=target)
    return " ".join(answer.warnings)


def test_recommend_names_what_fits_and_is_not_measurably_slower() -> None:
    warnings = said(scatter_ms=5.0, target=10**12)
    assert "within the widest noise band" in warnings
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


GB = 10**9


def optimizer_bound(modules: list[str], optimizer: float, forward: float, step_ms: float) -> Row:
    """A row of one GPU rank whose optimizer's step and forward reach so many GB."""
    peaks = tuple(
        StagePeak(0, stage, round(size * GB), 90 * GB, 0)
        for stage, size in ((Stage.FORWARD, forward), (Stage.OPTIMIZER_STEP, optimizer))
    )
    return row(modules, peaks=peaks, step_ms=step_ms, step_scatter_ms=0.1, device_kind="cuda", world_size=1)


def test_recommend_says_below_what_recompute_is_not_the_lever_and_what_recomputing_more_does() -> None:
    rows = [
        optimizer_bound([], 67.0, 69.2, 100.0),
        optimizer_bound(["mla_up_proj"], 67.2, 64.6, 106.0),
        optimizer_bound(["moe"], 69.8, 47.7, 119.0),
    ]
    (answer,) = recommend(compare(rows), target=68 * GB)
    (verdict,) = answer.verdicts
    assert verdict.id == OPTIMIZER_FLOOR
    assert "not the lever below 67.000 GB: no candidate's optimizer_step took less, and 2 of 3" in verdict.text
    assert "forward and backward need 47.700 GB at best" in verdict.text
    assert "above the control's 69.200 GB are moe 69.800 GB" in verdict.text
    assert "What would help" in verdict.text


def test_recommend_says_nothing_of_the_optimizer_where_forward_sets_the_peaks() -> None:
    rows = [optimizer_bound([], 30.0, 69.2, 100.0), optimizer_bound(["moe"], 30.0, 47.7, 119.0)]
    (answer,) = recommend(compare(rows), target=68 * GB)
    assert answer.verdicts == ()


def test_recommend_says_first_that_what_is_reserved_does_not_fit() -> None:
    rows = [optimizer_bound([], 60.0, 69.2, 100.0), optimizer_bound(["moe"], 60.0, 62.0, 119.0)]
    (answer,) = recommend(compare(rows), target=68 * GB)
    assert answer.warnings[0] == answer.reserved_over
    assert (
        "Only allocated memory fits: the allocator reserved 90.000 GB, 22.000 GB over the limit" in answer.warnings[0]
    )
    assert recommend(compare(rows), target=95 * GB)[0].reserved_over == ""


def test_recommend_doubts_a_choice_that_is_faster_than_recomputing_nothing() -> None:
    rows = [row([], step_ms=100.0, step_scatter_ms=0.1), row(["mlp"], step_ms=68.0, step_scatter_ms=0.1)]
    (answer,) = recommend(compare(rows), target=10**12)
    assert any("mlp is 32.00% faster than recomputing nothing: recompute cannot" in text for text in answer.warnings)
    rows[0] = row([], step_ms=100.0, step_scatter_ms=0.1, allocator_retries=4)
    assert "faster than" not in " ".join(recommend(compare(rows), target=10**12)[0].warnings)


def without_result(modules: list[str], outcome: str) -> Row:
    return row(modules, label=None, outcome_text=outcome, peaks=(), step_ms=None, step_scatter_ms=None, losses={})


@pytest.mark.parametrize("target", [10**12, 1])
def test_recommend_says_that_candidates_have_no_result_yet(target: int) -> None:
    rows = [row([]), row(["mlp"]), *(without_result([name], NOT_RUN) for name in ("moe", "layernorm"))]
    (answer,) = recommend(compare([*rows, without_result(["moe_act"], CUT_SHORT)]), target=target)
    text = "3 of 5 candidates have no result: layernorm, moe (not run yet); moe_act (cut short). The answer is of the"
    assert any(warning.startswith(text) for warning in answer.warnings)
    said = {loser.option.name: loser.text for loser in answer.pick.losers}
    assert (said["moe"], said["moe_act"]) == ("has no result: not run yet", "has no result: cut short")


def test_a_job_that_ran_slower_is_said_where_it_decides() -> None:
    """[mlp] ran in a slower job, where it was faster than its own control."""
    rows = [
        row([], batch="job-1", step_ms=950.0),
        row(["moe"], batch="job-1", step_ms=960.0),
        row([], batch="job-2", trial="again", role="control-first", step_ms=1130.0),
        row(["mlp"], batch="job-2", step_ms=1020.0),
    ]
    (answer,) = recommend(compare(rows), target=10**12)
    assert answer.chosen is not None
    assert answer.chosen.text == "moe"
    (said,) = [text for text in answer.warnings if "controls of their own jobs" in text]
    assert "mlp (-9.73%) would come before this choice (+1.05%)" in said
    assert "2 jobs took 950.00 to 1130.00 ms" in said
    (one_job,) = recommend(compare(rows[:2]), target=10**12)
    assert not any("controls of their own jobs" in text for text in one_job.warnings)


def test_a_cancelled_candidate_has_no_result() -> None:
    rows = [row([]), row(["mlp"], label="failed:cancelled", step_ms=None)]
    (answer,) = recommend(compare(rows), target=10**12)
    assert any(warning.startswith("1 of 2 candidates has no result: mlp (cancelled)") for warning in answer.warnings)


def test_recommend_says_nothing_of_missing_results_where_all_ended() -> None:
    (answer,) = recommend(compare([row([]), row(["mlp"], label="failed:hang", step_ms=None)]), target=10**12)
    assert "no result" not in " ".join(answer.warnings)


@pytest.mark.parametrize("target", [60 * GB, 100 * GB])
def test_the_advice_about_the_optimizer_is_one_whether_or_not_something_fits(target: int) -> None:
    rows = [optimizer_bound([], 67.0, 60.2, 106.0), optimizer_bound(["moe"], 67.5, 47.7, 100.0)]
    (verdict,) = recommend(compare(rows), target=target)[0].verdicts
    assert "What would help: BF16 moments; the distributed optimizer" in verdict.text
    assert "Shard, shrink" not in verdict.text


def test_a_hang_says_nothing_of_whether_recompute_is_the_lever() -> None:
    hung = replace(optimizer_bound([], 67.0, 55.0, 100.0), label="failed:hang", step_ms=None)
    assert recommend(compare([hung]), target=60 * GB)[0].verdicts == ()
    out = replace(hung, label="OOM-optimizer", cause="device_oom", stage=Stage.OPTIMIZER_STEP)
    assert len(recommend(compare([out]), target=60 * GB)[0].verdicts) == 1
