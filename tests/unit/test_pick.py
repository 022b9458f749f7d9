from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.published_tables import published_rows
from orchestrator.analysis.recommend import recommend
from orchestrator.select.pick import ALL_RANKS, ONE_RANK, REPORTED_MAX, Loss, Objective, Option, pareto_front, pick

GB = 10**9


def option(name, peak, step, **changes):
    made = Option(name, "pass", 1, 1, peak, ALL_RANKS, step)
    return replace(made, **changes)


options = st.builds(
    Option,
    name=st.text(max_size=3),
    label=st.sampled_from(["pass", "pass", "pass", "OOM-fwd", None]),
    passed=st.just(1),
    repeats=st.just(1),
    peak=st.none() | st.integers(0, 20),
    peak_scope=st.sampled_from([ALL_RANKS, ALL_RANKS, REPORTED_MAX, ONE_RANK, None]),
    step_ms=st.none() | st.integers(1, 20).map(float),
)
tables = st.lists(options, max_size=12, unique=True)
targets = st.integers(0, 22)


def eligible(one, limit):
    return (
        one.label == "pass"
        and one.peak is not None
        and one.step_ms is not None
        and one.peak_scope in (ALL_RANKS, REPORTED_MAX)
        and one.peak <= limit
    )


@given(tables, targets, st.integers(0, 3), st.sampled_from(Objective))
def test_the_pick_never_exceeds_the_target(table, target, headroom, objective):
    choice = pick(table, target=target, headroom=headroom, objective=objective).choice
    assert choice is None or (eligible(choice, target - headroom) and choice.peak + headroom <= target)


@given(tables, targets)
def test_no_eligible_row_is_faster_and_none_means_none(table, target):
    choice = pick(table, target=target).choice
    fitting = [one for one in table if eligible(one, target)]
    assert (choice is None) == (not fitting)
    assert all(choice.step_ms <= one.step_ms for one in fitting)


@given(tables, targets)
def test_no_eligible_row_is_smaller_where_memory_is_the_objective(table, target):
    choice = pick(table, target=target, objective=Objective.MEMORY).choice
    assert all(choice.peak <= one.peak for one in table if eligible(one, target))


def test_an_absent_peak_and_one_of_nothing_stand_in_one_order():
    absent, nothing = option("", None, None), option("", 0, None)
    assert pick([absent, nothing], target=0) == pick([nothing, absent], target=0)


@given(tables, targets, st.randoms(use_true_random=False), st.sampled_from(Objective))
def test_the_order_of_rows_changes_nothing(table, target, random, objective):
    shuffled = table[:]
    random.shuffle(shuffled)
    assert pick(shuffled, target=target, objective=objective) == pick(table, target=target, objective=objective)


@given(tables, targets, st.integers(0, 20), st.text(max_size=3))
def test_adding_a_slower_row_changes_nothing(table, target, peak, name):
    choice = pick(table, target=target).choice
    if choice is not None:
        slower = option(name, peak, choice.step_ms + 1)
        assert pick([*table, slower], target=target).choice == choice


@given(tables, targets)
def test_every_other_row_says_why_it_lost(table, target):
    answer = pick(table, target=target)
    told = {loser.option for loser in answer.losers}
    assert told == set(table) - {answer.choice}
    assert all(loser.text for loser in answer.losers)


@given(tables)
def test_nothing_beats_a_row_of_the_pareto_front(table):
    measured = [one for one in table if eligible(one, 10**6)]
    front = set(pareto_front(measured))
    for one in measured:
        beaten = any(
            other.peak <= one.peak
            and other.step_ms <= one.step_ms
            and (other.peak, other.step_ms) != (one.peak, one.step_ms)
            for other in measured
        )
        assert (one in front) == (not beaten)


def test_a_repeat_that_failed_makes_a_row_ineligible():
    answer = pick([option("moe", 5, 1.0, label="OOM-bwd", passed=2, repeats=3), option("[]", 9, 2.0)], target=10)
    assert answer.choice.name == "[]"
    assert (answer.losers[0].why, answer.losers[0].text) == (
        Loss.REPEAT_FAILED,
        "only 2 of 3 repeats passed (OOM-bwd)",
    )


def test_a_reported_maximum_is_eligible_with_a_warning_and_one_rank_never():
    assert pick([option("a", 5, 1.0, peak_scope=REPORTED_MAX)], target=10).warnings
    refused = pick([option("a", 5, 1.0, peak_scope=ONE_RANK)], target=10)
    assert refused.choice is None
    assert refused.losers[0].why is Loss.ONE_RANK_PEAK


def published(table, target_gb, **options):
    (answer,) = recommend(compare(published_rows(table)), target=round(target_gb * GB), **options)
    return answer


@pytest.mark.parametrize(("target", "expected"), [(40, "[]"), (36.0, "moe_act"), (35.91, "mla_up_proj"), (35.90, None)])
def test_targets_on_the_published_moonlight_table(target, expected):
    choice = published("moonlight-16b", target).pick.choice
    assert (choice.name if choice else None) == expected


def test_headroom_comes_off_the_target():
    assert published("moonlight-16b", 40, headroom=4 * GB).pick.choice.name == "moe_act"


def test_the_smallest_peak_is_chosen_where_memory_is_the_objective():
    assert published("moonlight-16b", 40, objective=Objective.MEMORY).pick.choice.name == "mla_up_proj"


def test_the_moonlight_front_leaves_out_what_costs_time_for_nothing():
    front = [one.name for one in published("moonlight-16b", 40).pick.pareto]
    assert front == ["mla_up_proj", "moe_act", "[]"]


def test_peaks_of_one_rank_are_refused_however_large_the_target():
    answer = published("nemotron-3-nano", 500)
    assert answer.pick.choice is None
    assert {loser.why for loser in answer.pick.losers} == {Loss.NOT_PASSED, Loss.ONE_RANK_PEAK}


@pytest.mark.parametrize("target", [55.6, 60, 500])
def test_the_historical_table_is_refused_since_no_row_is_known_to_have_passed(target):
    answer = published("llama3-70b-sft", target)
    assert answer.pick.choice is None
    assert {loser.why for loser in answer.pick.losers} == {Loss.NOT_PASSED}


def test_the_answer_ends_with_lines_to_paste():
    answer = published("moonlight-16b", 36)
    assert answer.python[:2] == (
        'cfg.model.recompute_granularity = "selective"',
        'cfg.model.recompute_modules = ["moe_act"]',
    )
    assert "'model.recompute_modules=[moe_act]'" in answer.bridge
    assert "recompute_modules=[moe_act]" in answer.ours


def test_a_row_without_a_time_is_refused_for_its_peak_first():
    answer = pick([option("moe", 20, None), option("mlp", 5, None)], target=10)
    assert {loser.option.name: loser.why for loser in answer.losers} == {"moe": Loss.OVER_TARGET, "mlp": Loss.NO_TIME}
