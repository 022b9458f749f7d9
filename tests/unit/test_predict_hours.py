"""GPU-hours of trials."""

from __future__ import annotations

import pytest

from orchestrator.predict.hours import Hours, saved_hours, spent_hours, trial_hours


def test_a_trial_that_was_timed_lies_in_its_range() -> None:
    """Ten iterations of 1.83 s on one H200 took 52 s in all (docs of the H200 study)."""
    found = trial_hours(1, 10, 1.83)
    assert found.low <= 56 / 3600 <= found.high
    assert found.low <= found.expected <= found.high


def test_hours_grow_with_ranks() -> None:
    assert trial_hours(8, 20, 0.5).expected == pytest.approx(8 * trial_hours(1, 20, 0.5).expected)


def test_without_a_step_time_the_range_is_wide() -> None:
    unknown, known = trial_hours(1, 20, None), trial_hours(1, 20, 2.0)
    assert unknown.high - unknown.low > known.high - known.low


def test_what_was_spent_counts_a_running_trial_until_now() -> None:
    assert spent_hours([(8, 0.0, 3600.0), (2, 1800.0, None), (4, None, None)], now=5400.0) == pytest.approx(8 + 2)


def test_a_search_never_saves_less_than_nothing() -> None:
    one = Hours(1.0, 1.0, 1.0)
    assert saved_hours([one] * 6, [one] * 2) == 4.0
    assert saved_hours([one], [one] * 2) == 0.0
