"""Figures over the ranks of an attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest
import recorded
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.jsonfile import encode
from orchestrator.records.rank import IterationRecord, RankRecord, StageMemory
from orchestrator.store.measures import StageSizes, attempt_figures, largest, peaks_to, window_peaks
from orchestrator.vocabulary import Stage


def peaks_of(record: RankRecord, last: int) -> dict[str, tuple[int | None, int | None]]:
    return dict(window_peaks(record, [encode(one.stages) for one in record.iterations], last))


def rank(*peaks: int, after: int = 0, setup: int = 10, done: int | None = None) -> RankRecord:
    """A rank whose forward peaks are `peaks` by iteration, and that saved a checkpoint of size `after` at the end."""
    iterations = [
        IterationRecord(number, 100.0, stages=[StageMemory(Stage.FORWARD, 1, peak, peak + 5)])
        for number, peak in enumerate(peaks[:done], 1)
    ]
    stages = [
        StageMemory(Stage.MODEL_BUILD, 1, setup, setup),
        StageMemory(Stage.FORWARD, len(peaks), max(peaks), max(peaks) + 5),
        StageMemory(Stage.CHECKPOINT_SAVE, 1, after, after),
    ]
    return replace(recorded.rank_record("t", 0), iterations=iterations, stages=stages)


def test_what_comes_after_the_window_does_not_count() -> None:
    record = rank(50, 60, 90, after=200)
    assert peaks_of(record, 2) == {"model_build": (10, 10), "forward": (60, 65)}
    assert peaks_of(record, 3)["forward"] == (90, 95)


def test_set_up_counts_although_it_is_before_the_window() -> None:
    peak = largest(peaks_of(rank(50, 60, setup=300), 2), 0)
    assert peak is not None
    assert (peak.size, peak.stage) == (300, "model_build")


def test_rank_that_died_in_the_window_counts_as_far_as_it_came() -> None:
    # Its last forward ran out of memory: the iteration has no row, the stage's total has the peak.
    assert peaks_of(rank(50, 60, 90, done=2), 3)["forward"] == (90, 95)


def test_sizes_that_were_not_read_are_absent_and_not_zero() -> None:
    record = replace(
        rank(50),
        stages=[StageMemory(Stage.FORWARD, 1)],
        iterations=[IterationRecord(1, 1.0, stages=[StageMemory(Stage.FORWARD, 1)])],
    )
    peaks = peaks_of(record, 1)
    assert largest(peaks, 0) is None
    figures = attempt_figures({0: record}, {0: peaks}, (1, 1))
    assert figures.allocated is None


def test_step_time_is_that_of_the_slowest_rank() -> None:
    ranks = {
        number: replace(
            recorded.rank_record("t", number),
            iterations=[IterationRecord(1, 10.0 + 5 * number), IterationRecord(2, 30.0 - 5 * number)],
        )
        for number in range(2)
    }
    figures = attempt_figures(ranks, {}, (1, 2))
    assert (figures.step_ms, figures.step_count) == (pytest.approx(22.5), 2)
    assert figures.step_ms_scatter == pytest.approx(10.607, abs=1e-3)


def test_garbage_collection_is_said_and_does_not_count_as_scatter() -> None:
    """Steps of a real run: one of five collects."""
    steps = [(2079.0, 420.0), (1686.0, 9.0), (1678.0, 8.0), (1667.0, 11.0), (1688.0, 8.0)]
    iterations = [IterationRecord(number, ms, gc_milliseconds=gc) for number, (ms, gc) in enumerate(steps, 1)]
    waiting = [replace(one, gc_milliseconds=0.0) for one in iterations]
    ranks = {
        0: replace(recorded.rank_record("t", 0), iterations=iterations),
        1: replace(recorded.rank_record("t", 1), iterations=waiting),
    }
    figures = attempt_figures(ranks, {}, (1, 5))
    assert (figures.step_ms, figures.step_gc_ms) == (pytest.approx(1759.6), pytest.approx(91.2))
    assert figures.step_ms_scatter == pytest.approx(10.0, abs=1.0)
    old = {**ranks, 1: replace(ranks[1], iterations=[replace(one, gc_milliseconds=None) for one in waiting])}
    figures = attempt_figures(old, {}, (1, 5))
    assert figures.step_gc_ms is None
    assert figures.step_ms_scatter == pytest.approx(178.7, abs=0.1)


def test_collections_that_nobody_waited_for_are_no_scatter() -> None:
    """Rank 1 collects in every second step, while it waits for rank 0 anyhow."""
    steps = [IterationRecord(number, 100.0, gc_milliseconds=0.0) for number in (1, 2, 3, 4)]
    others = [replace(one, gc_milliseconds=40.0 * (one.number % 2)) for one in steps]
    ranks = {
        number: replace(recorded.rank_record("t", number), iterations=rows)
        for number, rows in enumerate([steps, others])
    }
    assert attempt_figures(ranks, {}, (1, 4)).step_ms_scatter == 0.0


@pytest.mark.parametrize("taken", [-1.0, 1e9, 1.7e308, float("nan"), float("inf")])
def test_garbage_collection_that_cannot_be_is_not_known(taken: float) -> None:
    rows = [IterationRecord(number, 100.0 + number, gc_milliseconds=taken) for number in (1, 2)]
    figures = attempt_figures({0: replace(recorded.rank_record("t", 0), iterations=rows)}, {}, (1, 2))
    assert (figures.step_ms, figures.step_gc_ms) == (101.5, None)


def test_a_step_of_thirty_years_is_none() -> None:
    rows = [IterationRecord(number, 1.7e308) for number in (1, 2)]
    assert attempt_figures({0: replace(recorded.rank_record("t", 0), iterations=rows)}, {}, (1, 2)).step_ms is None


def test_unfinished_window_has_no_step_time() -> None:
    whole = recorded.rank_record("t", 0)
    short = replace(recorded.rank_record("t", 1), iterations=whole.iterations[:3])
    assert attempt_figures({0: whole, 1: short}, {}, (3, 4)).step_ms is None
    assert attempt_figures({}, {}, (3, 4)).step_ms is None


def test_hot_rank_and_stage_are_named() -> None:
    peaks = {0: {"forward": (10, 90)}, 1: {"forward": (30, 40), "backward": (20, None)}}
    figures = attempt_figures({}, peaks, (1, 1))
    assert figures.allocated is not None
    assert figures.reserved is not None
    assert (figures.allocated.size, figures.allocated.rank, figures.allocated.stage) == (30, 1, "forward")
    assert (figures.reserved.size, figures.reserved.rank) == (90, 0)
    assert figures.stage_peaks == {"forward": [30, 1, 90, 0], "backward": [20, 1, None, None]}


def test_losses_are_those_of_the_lowest_rank_that_has_any() -> None:
    with_losses = recorded.rank_record("t", 1)
    without = replace(
        recorded.rank_record("t", 0), iterations=[replace(one, loss=None) for one in with_losses.iterations]
    )
    bad = replace(with_losses, iterations=[replace(with_losses.iterations[0], loss=float("nan"))])
    assert attempt_figures({0: without, 1: with_losses}, {}, (3, 4)).last_loss == pytest.approx(10.6)
    assert attempt_figures({0: bad}, {}, (1, 1)).losses == [[1, "nan"]]


def test_replays_are_counted_over_ranks() -> None:
    ranks = {number: recorded.rank_record("t", number) for number in range(2)}
    assert attempt_figures(ranks, {}, (3, 4)).replays == 8
    assert attempt_figures({0: replace(ranks[0], stages=[])}, {}, (3, 4)).replays is None


_SIZE = st.none() | st.integers(0, 9)
_ITERATION = st.lists(st.tuples(st.sampled_from(["forward", "backward", "replay"]), _SIZE, _SIZE), max_size=4)


@given(
    st.lists(_ITERATION, min_size=1, max_size=5)
    | st.builds(lambda first, one: [first, *[one] * 4], _ITERATION, _ITERATION),
    st.integers(1, 5),
)
def test_stage_peaks_are_the_largest_up_to_the_window(stages: list[list[tuple[str, int, int]]], last: int) -> None:
    iterations = [IterationRecord(number, 1.0) for number in range(1, len(stages) + 1)]
    record = replace(recorded.rank_record("t", 0), iterations=iterations, stages=[])
    sizes = StageSizes.of(tuple(map(len, stages)), [row for one in stages for row in one])
    counted = [row for one in stages[:last] for row in one] if last <= len(stages) else []
    expected = {}
    for place in (1, 2):
        for stage in {row[0] for row in counted}:
            found = [row[place] for row in counted if row[0] == stage and row[place] is not None]
            expected[stage, place] = max(found, default=None)
    peaks = peaks_to(record, sizes, last)
    assert {key for key, size in expected.items() if size is not None} == {
        (stage, place) for stage, pair in peaks.items() for place in (1, 2) if pair[place - 1] is not None
    }
    assert all(pair[place - 1] == expected[stage, place] for stage, pair in peaks.items() for place in (1, 2))
