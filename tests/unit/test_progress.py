"""When a supervisor gives a trainer up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.beacon import FLAG_UNWINDING, BeaconHead
from orchestrator.trial.progress import HUNG_AFTER_RAISE, OVERSLEPT_SECONDS, UNWIND_SECONDS, Progress


def head(word: int, flags: int = 0) -> BeaconHead:
    return BeaconHead(pid=1, word=word, at=float(word), flags=flags)


def looks(progress: Progress, until: float, word: BeaconHead | None, start: float = 0.0) -> tuple[float, str | None]:
    """Look every half second; when something was said, and what."""
    now = start
    while now < until:
        now += 0.5
        why = progress.look(now, word)
        if why is not None:
            return now, why
    return now, None


def test_a_trainer_that_never_makes_a_beacon_stalls() -> None:
    assert looks(Progress(0.0, 30.0, None), 100.0, None) == (30.0, "stall")


def test_a_trainer_that_moves_does_not_stall() -> None:
    progress = Progress(0.0, 2.0, None)
    assert all(progress.look(float(second), head(second)) is None for second in range(1, 100))


def test_a_trainer_stalls_that_long_after_its_last_move() -> None:
    progress = Progress(0.0, 30.0, None)
    assert looks(progress, 20.0, head(1)) == (20.0, None)
    assert looks(progress, 100.0, head(2), start=20.0) == (50.5, "stall")


def test_a_beacon_that_cannot_be_read_is_no_move() -> None:
    progress = Progress(0.0, 30.0, None)
    answers = [progress.look(now / 2, head(1) if now % 2 else None) for now in range(1, 100)]
    assert "stall" in answers


def test_the_time_limit_counts_from_the_start_whether_it_moves_or_not() -> None:
    progress = Progress(0.0, 30.0, 5.0)
    answers = {second: progress.look(float(second), head(second)) for second in range(1, 6)}
    assert answers == {1: None, 2: None, 3: None, 4: None, 5: "time_limit"}


def test_a_trainer_that_raised_is_given_less_time() -> None:
    progress = Progress(0.0, 300.0, None)
    assert looks(progress, 60.0, head(1, FLAG_UNWINDING)) == (UNWIND_SECONDS + 0.5, HUNG_AFTER_RAISE)


def test_a_suspended_job_does_not_stall() -> None:
    progress = Progress(0.0, 30.0, None)
    looks(progress, 29.0, head(0))
    assert progress.look(29.0 + 3600.0, head(0)) is None
    assert looks(progress, 3700.0, head(0), start=3629.0)[1] == "stall"


@given(
    moves=st.lists(st.floats(0.1, OVERSLEPT_SECONDS), min_size=1, max_size=50),
    stall=st.floats(OVERSLEPT_SECONDS, 1000.0),
)
def test_no_trainer_is_given_up_that_moved_between_any_two_looks(moves: list[float], stall: float) -> None:
    progress, now = Progress(0.0, stall + 0.01, None), 0.0
    for index, gap in enumerate(moves):
        now += gap
        assert progress.look(now, head(index + 1)) is None
