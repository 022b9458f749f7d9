from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_rows import early_failure, row

from orchestrator.analysis.comparison import Delta, compare
from orchestrator.analysis.noise import NoiseBand, band
from orchestrator.analysis.recommend import recommend
from orchestrator.analysis.recompute import requested_recompute
from orchestrator.analysis.rows import CUT_SHORT, RUNNING
from orchestrator.report.compare import delta_text, difference_lines, footnotes, group_table
from orchestrator.select.match import RECOMPUTE_FIELDS
from orchestrator.vocabulary import Stage


def lines(rows, **options):
    (group,) = compare(rows, **options).groups
    return {line.text: line for line in group.lines}


def test_deltas_stand_against_the_control():
    found = lines([row(), row(["moe_act"], peak=900_000_000, step_ms=110.0)])
    assert found["moe_act"].peak_delta.fraction == pytest.approx(-0.1)
    assert found["moe_act"].time_delta.fraction == pytest.approx(0.1)
    assert found["[]"].is_control
    assert found["[]"].time_delta is None


def test_rows_of_other_keys_get_no_deltas_against_each_other():
    comparison = compare([row(), row(["moe_act"], effective_model={"num_layers": 8})])
    assert len(comparison.groups) == 2
    assert [item.field for item in comparison.differences] == ["effective.model.num_layers"]
    assert all(line.time_delta is None for group in comparison.groups for line in group.lines)


def test_a_delta_inside_the_windows_scatter_is_not_measurable():
    found = lines([row(), row(["core_attn"], step_ms=100.5)])["core_attn"]
    assert not found.time_delta.measurable
    assert found.time_delta.band.basis == "window"


@pytest.mark.parametrize(
    ("fraction", "half_width", "text"),
    [
        (0.0633, 0.1375, "no measurable effect (+6.33% ±13.75%)"),
        (0.19, 0.1346, "+19.00% (±13.46%)"),
        (-0.0296, 0.00004, "-2.96% (±0.004%)"),
        (-0.0296, 0.0, "-2.96%"),
        (0.0, 0.0, "no measurable effect (0.00%)"),
    ],
)
def test_a_delta_inside_the_noise_shows_what_was_seen_and_no_band_reads_as_nothing(fraction, half_width, text):
    band = NoiseBand(half_width, "window", 1, half_width, 0.0, None)
    assert delta_text(Delta(fraction, band)) == text


def test_repeats_give_their_median_and_a_band_of_their_own():
    repeats = [row(["moe"], trial=f"t{n}", repeat=n, step_ms=ms) for n, ms in enumerate((110.0, 112.0, 190.0))]
    found = lines([row(), *repeats])["moe"]
    assert found.step_ms == 112.0
    assert found.passed == 3
    assert found.time_delta.band.basis == "repeats"
    assert not found.time_delta.measurable


def test_the_peak_of_several_runs_is_the_largest_wherever_it_is_shown():
    sizes = (300_000_000, 320_000_000, 310_000_000)
    repeats = [row(["moe"], trial=f"t{n}", repeat=n, peak=size) for n, size in enumerate(sizes)]
    comparison = compare([row(), *repeats])
    line = next(line for line in comparison.groups[0].lines if line.text == "moe")
    assert line.peak.allocated == max(sizes)
    assert line.decided.trial == "t1"
    (answer,) = recommend(comparison, target=max(sizes))
    assert answer.pick.choice.peak == max(sizes)
    (group,) = comparison.groups
    assert any(cell == "0.320" for cells in group_table(group).rows for cell in cells)
    assert any("the largest peak" in note and "moe (3 runs)" in note for note in footnotes(group))


def test_garbage_collection_that_took_longer_in_one_of_two_runs_joins_the_band():
    control = row(step_ms=1756.0, step_scatter_ms=0.0, step_gc_ms=90.0)
    made = row(["moe"], step_ms=1781.0, step_scatter_ms=0.0, step_gc_ms=115.0)
    found = lines([control, made])["moe"].time_delta
    assert found.band.half_width == pytest.approx(25 / 1756)
    assert found.band.holds(found.fraction)
    scattered = lines([replace(control, step_scatter_ms=17.56), made])["moe"].time_delta.band
    assert scattered.half_width == pytest.approx(25 / 1756 + 0.01 * 1781 / 1756)
    (group,) = compare([control, made]).groups
    assert any("by how much their garbage collection differs" in note for note in footnotes(group))
    unknown = lines([replace(control, step_gc_ms=None), made])["moe"].time_delta
    assert unknown.band.garbage == 0.0


def test_repeats_against_one_control_do_not_hide_how_long_its_own_garbage_collection_took():
    """The control's luck moves every repeat's delta, and is in no spread of theirs."""
    control = row(step_ms=1100.0, step_scatter_ms=0.0, step_gc_ms=100.0)
    made = [row(["moe"], trial=f"m{n}", repeat=n, step_ms=1080.0 + n / 100, step_gc_ms=80.0) for n in range(3)]
    found = lines([control, *made])["moe"].time_delta
    assert found.band.basis == "repeats"
    assert found.band.garbage == pytest.approx(20 / 1100)
    assert found.band.holds(found.fraction)


@given(st.floats(0.4, 0.6), st.floats(0.4, 0.6), st.floats(0.0, 0.02), st.sampled_from([-0.5, 0.5]))
def test_garbage_collection_alone_is_never_an_effect(one: float, other: float, scatter: float, apart: float) -> None:
    """Two runs that differ by how long their collections took, and by half of what their windows scatter."""
    control, made = (
        row(
            modules,
            step_ms=1700.0 * (1 + share * scatter) + 200 * seconds,
            step_gc_ms=200 * seconds,
            step_scatter_ms=1700.0 * scatter,
        )
        for modules, share, seconds in (([], 0.0, one), (["moe"], apart, other))
    )
    found = lines([control, made])["moe"].time_delta
    assert abs(found.fraction) <= found.band.half_width * (1 + 1e-9)


def test_the_drift_of_the_jobs_two_controls_joins_the_band():
    first = row(role="control-first", step_ms=100.0)
    last = row(role="control-last", attempt="002", step_ms=108.0)
    found = lines([first, last, row(["moe"], step_ms=108.0)])["moe"]
    assert found.time_delta.fraction == pytest.approx(108 / 104 - 1)
    assert found.time_delta.band.drift == pytest.approx(8 / 104)
    assert not found.time_delta.measurable


def test_a_delta_is_taken_in_the_rows_own_job():
    controls = [
        row(batch="job-1", step_ms=100.0, role="control-first"),
        row(batch="job-2", step_ms=200.0, role="control-first"),
    ]
    found = lines([*controls, row(["moe"], batch="job-2", step_ms=220.0)])["moe"]
    assert found.time_delta.fraction == pytest.approx(0.1)
    assert not found.time_delta.other_nodes


def test_a_delta_against_another_jobs_control_is_flagged():
    found = lines([row(batch="job-1"), row(["moe"], batch="job-2", step_ms=120.0)])["moe"]
    assert found.time_delta.other_nodes


def test_a_failed_repeat_shows_in_the_label_and_the_count():
    found = lines([row(), row(["moe"]), row(["moe"], trial="t2", repeat=1, label="OOM-bwd", stage=Stage.REPLAY)])["moe"]
    assert (found.label, found.passed, len(found.runs)) == ("OOM-bwd", 1, 2)


def test_rows_that_did_not_pass_get_no_deltas():
    found = lines([row(), row(["moe"], label="OOM-optimizer", peak=500)])["moe"]
    assert found.peak.allocated == 500
    assert found.peak_delta is None


def test_one_label_steps_are_found_from_every_row_that_lacks_just_it():
    found = lines([row(), row(["mlp"]), row(["moe"]), row(["mlp", "moe"], step_ms=120.0)])
    assert [(change.base, change.label) for change in found["mlp, moe"].one_label] == [("mlp", "moe"), ("moe", "mlp")]
    assert found["mlp, moe"].one_label[0].time.fraction == pytest.approx(0.2)
    assert [change.base for change in found["mlp"].one_label] == ["[]"]


def test_full_recompute_is_no_label_apart_from_anything():
    found = lines([row(), row(granularity="full", method="uniform", num_layers=1)])
    assert found["full uniform 1"].one_label == ()


def test_losses_are_held_against_the_control():
    found = lines([row(), row(["moe"], losses={1: 4.0, 20: 3.0003})])["moe"]
    assert found.loss_difference == pytest.approx(1e-4)


def test_an_early_failure_stands_in_its_group_and_is_marked():
    found = lines([row(), early_failure(["moe"])])["moe"]
    assert found.by_request
    assert found.label == "failed:import_error"


def test_an_unset_list_is_shown_as_what_the_framework_made_of_it():
    unset = row(["core_attn"])
    unset.requested["recompute_modules"] = None
    found = lines([row(), unset])["core_attn"]
    assert found.notes == ("asked for unset, ran core_attn",)
    assert not found.is_control


def test_a_wiped_override_is_said():
    wiped = row(["core_attn"])
    wiped.requested["recompute_modules"] = ["moe_act"]
    assert lines([row(), wiped])["core_attn"].notes == ("asked for moe_act, ran core_attn",)


def test_offloading_is_a_candidate_of_its_own_and_no_control():
    offloaded = row(
        effective_model={"cpu_offloading": True, "cpu_offloading_num_layers": 2}, trial="off", step_ms=300.0
    )
    found = lines([row(), offloaded])
    assert len(found) == 2
    assert found["[]"].is_control
    assert found["[]"].step_ms == 100.0


def test_a_retried_trial_is_shown_by_its_result():
    died = row(["moe"], attempt="001", label="failed:node_failure")
    passed = row(["moe"], attempt="002")
    found = lines([row(), passed, died])["moe"]
    assert (found.label, len(found.runs)) == ("pass", 1)


def test_the_order_of_rows_changes_nothing():
    rows = [row(), row(["moe"]), row(["mlp"]), early_failure(["moe_act"]), row(["moe"], trial="again", repeat=1)]
    expected = compare(rows)
    for seed in range(10):
        shuffled = rows[:]
        random.Random(seed).shuffle(shuffled)
        assert compare(shuffled) == expected


def test_a_row_without_an_effective_configuration_does_not_hide_what_the_others_differ_in():
    early = early_failure(["moe"], memory_limit=7)
    rows = [row(), row(["moe"], effective_model={"hidden_size": 256}), early]
    assert {item.field for item in compare(rows).differences} == {"effective.model.hidden_size"}
    (line,) = difference_lines(compare(rows))
    assert set(line.partition(": ")[2].split(" | ")) == {"128", "256"}


def test_very_many_differences_are_cut_short_and_counted():
    many = {f"field_{number}": "x" * 100 for number in range(30)}
    found = difference_lines(compare([row(), row(["moe"], effective_model=many)]))
    assert len(found) == 21
    assert found[-1].startswith("and 10 more fields")
    assert max(map(len, found)) < 100


def test_where_a_job_had_one_control_all_known_passes_of_it_tell_the_noise():
    control = row(role="control-first", step_ms=100.0, other_passes_ms=(150.0,))
    found = lines([control, row(["core_attn"], step_ms=80.0)])["core_attn"]
    assert not found.time_delta.measurable
    assert found.time_delta.band.drift == pytest.approx(0.4)
    (group,) = compare([control, row(["core_attn"], step_ms=80.0)]).groups
    assert any("2 passes of the control, in any job, lay up to 40.00% apart" in note for note in footnotes(group))


def test_a_control_of_another_job_is_called_so_and_other_nodes_only_where_hosts_differ():
    rows = [row(batch="job-1", hosts=("a",)), row(["moe"], batch="job-2", step_ms=110.0, hosts=("a",))]
    assert delta_text(lines(rows)["moe"].time_delta).endswith(", other job")
    rows[1] = row(["moe"], batch="job-2", step_ms=110.0, hosts=("b",))
    assert delta_text(lines(rows)["moe"].time_delta).endswith(", other nodes")


@pytest.mark.parametrize(
    ("granularity", "modules", "method", "layers", "text"),
    [
        # What does not act may be left to the recipe: a row that has not run yet is named by what it asks for.
        ("selective", ["moe"], "recipe", "recipe", "moe"),
        ("selective", [], "recipe", "recipe", "[]"),
        ("full", "recipe", "uniform", 1, "full uniform 1"),
        ("full", "recipe", "uniform", "recipe", "as the recipe"),
        ("selective", "recipe", None, None, "as the recipe"),
        ("recipe", "recipe", "recipe", "recipe", "as the recipe"),
        (None, "recipe", "recipe", "recipe", "off"),
    ],
)
def test_a_request_is_named_by_what_acts(granularity, modules, method, layers, text):
    settings = zip(RECOMPUTE_FIELDS, (granularity, modules, method, layers), strict=True)
    assert requested_recompute(dict(settings)).text == text


def unfinished(role, outcome):
    return row([], role=role, label=None, outcome_text=outcome, peaks=(), step_ms=None, losses={}, attempt="002")


def test_a_closing_control_that_was_cut_short_is_said_with_what_it_leaves_unknown():
    (group,) = compare([row([], role="control-first"), row(["mlp"]), unfinished("control-last", CUT_SHORT)]).groups
    (said,) = [note for note in footnotes(group) if "was to close a job" in note]
    assert said.startswith("the control that was to close a job (job-1) has no result: cut short.")
    assert "drifted within that job is not known" in said
    assert group.control.passed == 1


@pytest.mark.parametrize(("role", "outcome"), [("control-last", RUNNING), ("control-first", CUT_SHORT)])
def test_a_closing_control_that_still_runs_is_not_missed(role, outcome):
    (group,) = compare([row([], role="control-first"), row(["mlp"]), unfinished(role, outcome)]).groups
    assert not any("was to close" in note for note in footnotes(group))


def test_the_noise_note_says_what_each_scatter_is_a_share_of():
    (group,) = compare([row(), row(["mlp"])]).groups
    assert any("a single run's own window and that of" in note for note in footnotes(group))


def test_a_trial_that_was_cut_short_says_so_and_no_stage():
    cut = row(["mlp"], label=None, outcome_text=CUT_SHORT, peaks=(), step_ms=None, losses={}, stage=Stage.UNKNOWN)
    (group,) = compare([row(), cut]).groups
    assert "cut short" in group_table(group).rows[1]


@given(own=st.floats(0, 0.3), control=st.floats(0, 0.3), drift=st.floats(0, 0.3), delta=st.floats(-0.5, 2.0))
def test_a_shares_scatter_moves_a_delta_by_the_ratio(own, control, drift, delta):
    """The relative variance of a ratio is the sum of the relative variances of its parts."""
    found = band([delta], own, control, [drift])
    assert found.half_width == pytest.approx((1 + delta) * math.hypot(own, control, drift))
