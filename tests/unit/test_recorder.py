"""The stage recorder: what it credits to which stage, and what it keeps of an exception."""

from __future__ import annotations

import gc
import inspect
import itertools
import tempfile
import threading
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.assemble import Ending, assemble
from orchestrator.records.beacon import FLAG_PAUSED, FLAG_UNWINDING, BeaconReader, BeaconWriter
from orchestrator.records.jsonfile import read_json
from orchestrator.records.rank import ENDED_EXIT, RankRecord, StageMemory
from orchestrator.records.spec import TrialSpec
from orchestrator.trial import garbage
from orchestrator.trial import recorder as module
from orchestrator.trial.cost import COST_LIMIT, Cost, affordable
from orchestrator.trial.garbage import GarbageClock
from orchestrator.trial.meter import Meter
from orchestrator.trial.recorder import Recorder
from orchestrator.vocabulary import Stage


class Holding(Meter):
    """A device that holds what the test says; reserved is twice the allocated."""

    def __init__(self) -> None:
        self.held = self.most = 0

    def hold(self, size: int) -> None:
        self.held += size
        self.most = max(self.most, self.held)

    def peak(self) -> tuple[int, int]:
        return self.most, 2 * self.most

    def reset(self) -> None:
        self.most = self.held

    def current(self) -> tuple[int, int]:
        return self.held, 2 * self.held

    def capacity(self) -> int | None:
        return None

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        return 3, 1


class Bench:
    """A recorder, its meter, and what can be read from outside."""

    def __init__(self, folder: Path, window: tuple[int, int] = (2, 3), iterations: int = 6) -> None:
        self.folder = folder
        self.meter = Holding()
        self.window = window
        self.iterations = iterations
        self.recorder = Recorder(
            BeaconWriter(folder / "rank-00000.beacon", iterations), folder / "rank-00000.facts.json", self.meter, window
        )

    def read(self) -> BeaconReader:
        return BeaconReader(self.folder / "rank-00000.beacon")

    def totals(self) -> dict[Stage, StageMemory]:
        return {row.stage: row for row in self.read().stages()}

    def record(self) -> RankRecord:
        spec = TrialSpec("t", "001", "x", 1, {}, str(self.folder), str(self.folder), self.window, self.iterations)
        return assemble(spec, 0, Ending(ENDED_EXIT, 0.0, 1.0))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_peak_belongs_to_the_stage_in_which_it_was_reached(bench: Bench) -> None:
    recorder, meter = bench.recorder, bench.meter
    recorder.begin_iteration(1)
    with recorder.stage(Stage.FORWARD):
        meter.hold(500)
        meter.hold(-100)
    with recorder.stage(Stage.BACKWARD):
        meter.hold(50)
        meter.hold(-450)
    totals = bench.totals()
    forward, backward = totals[Stage.FORWARD], totals[Stage.BACKWARD]
    assert (forward.peak_allocated, forward.end_allocated) == (500, 400)
    assert (backward.peak_allocated, backward.end_allocated) == (450, 0)
    assert (backward.peak_reserved, backward.end_reserved) == (900, 0)


def test_what_is_nested_in_a_stage_is_not_in_its_figures(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    recorder, meter = bench.recorder, bench.meter
    recorder.use(meter)
    recorder.begin_iteration(1)
    recorder.enter(Stage.BACKWARD)
    clock.now += 1.0
    recorder.enter(Stage.REPLAY)
    clock.now += 4.0
    meter.hold(300)
    meter.hold(-300)
    recorder.leave()
    meter.hold(200)
    clock.now += 2.0
    recorder.leave()
    totals = bench.totals()
    assert (totals[Stage.BACKWARD].seconds, totals[Stage.REPLAY].seconds) == (3.0, 4.0)
    assert (totals[Stage.BACKWARD].peak_allocated, totals[Stage.REPLAY].peak_allocated) == (200, 300)
    assert (totals[Stage.BACKWARD].entries, totals[Stage.REPLAY].entries) == (1, 1)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_hook_on_another_thread_enters_the_same_stack(bench: Bench) -> None:
    """Autograd runs the hooks of a backward on the device's thread, while the stage was entered on the main one."""
    recorder = bench.recorder
    recorder.begin_iteration(1)
    inside: list[Stage] = []

    def hook() -> None:
        with recorder.stage(Stage.REPLAY):
            inside.append(bench.read().last.stage)

    with recorder.stage(Stage.BACKWARD):
        thread = threading.Thread(target=hook)
        thread.start()
        thread.join()
        assert bench.read().last.stage is Stage.BACKWARD
    assert inside == [Stage.REPLAY]
    assert bench.totals()[Stage.REPLAY].entries == 1


@pytest.mark.parametrize("outer", [Stage.EVALUATE, Stage.GRAPH_CAPTURE, Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD])
def test_a_forward_of_an_evaluation_is_evaluation(bench: Bench, outer: Stage) -> None:
    recorder = bench.recorder
    recorder.begin_iteration(1)
    with recorder.stage(outer), recorder.stage(Stage.FORWARD):
        assert bench.read().last.stage is outer
    totals = bench.totals()
    assert Stage.FORWARD not in totals
    assert totals[outer].entries == 1


def test_outside_of_all_stages_is_startup_and_then_between_steps(bench: Bench) -> None:
    assert bench.read().last.stage is Stage.STARTUP
    with bench.recorder.stage(Stage.MODEL_BUILD):
        pass
    assert bench.read().last.stage is Stage.STARTUP
    bench.recorder.begin_iteration(1)
    assert bench.read().last.stage is Stage.BETWEEN_STEPS
    bench.recorder.rest_in(Stage.TEARDOWN)
    assert bench.read().last.stage is Stage.TEARDOWN


def test_each_iteration_has_its_own_stages_and_the_peak_so_far(bench: Bench) -> None:
    recorder, meter = bench.recorder, bench.meter
    for number, size in ((1, 100), (2, 900), (3, 300)):
        recorder.begin_iteration(number)
        recorder.microbatch(number)
        with recorder.stage(Stage.FORWARD):
            meter.hold(size)
            meter.hold(-size)
        recorder.end_iteration(1e6 * number, loss=0.5, skipped=number == 3, nan=False, tflops=2.0)
    rows = bench.read().iterations()
    assert [row.peak_allocated for row in rows] == [100, 900, 900]
    assert [{s.stage: s.peak_allocated for s in row.stages}[Stage.FORWARD] for row in rows] == [100, 900, 300]
    assert [row.skipped for row in rows] == [False, False, True]
    assert [row.milliseconds for row in rows] == [1e6, 2e6, 3e6]
    assert rows[0].grad_norm is None
    last = bench.read().last
    assert (last.iteration, last.microbatch) == (3, 3)


def test_an_iteration_says_how_long_garbage_was_collected_since_the_one_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    clock = GarbageClock()
    monkeypatch.setattr(garbage, "_CLOCK", clock)
    request.addfinalizer(lambda: gc.callbacks.remove(clock))
    for number, cycles in ((1, 0), (2, 400_000), (3, 0)):
        bench.recorder.begin_iteration(number)
        bench.recorder.end_iteration(1e6)
        waste: list[object] = [[] for _ in range(cycles)]
        waste.append(waste)
        del waste
        if cycles:
            gc.collect()
    assert gc.callbacks.count(clock) == 1
    before, during, after = (one.gc_milliseconds for one in bench.read().iterations())
    assert before is not None
    assert during is not None
    assert after is not None
    assert after > 1.0 > max(before, during)


def test_no_more_is_garbage_collection_than_the_iteration_took(bench: Bench) -> None:
    bench.recorder.begin_iteration(1)
    gc.collect()
    bench.recorder.end_iteration(0.001)
    (one,) = bench.read().iterations()
    assert one.gc_milliseconds == 0.001


def test_the_running_peak_survives_the_resets(bench: Bench) -> None:
    bench.meter.hold(800)
    bench.meter.hold(-700)
    assert bench.recorder.running_peak() == (800, 1600)
    with bench.recorder.stage(Stage.MODEL_BUILD):
        assert bench.meter.peak() == (100, 200)
        assert bench.recorder.running_peak() == (800, 1600)


def test_a_meter_that_comes_later_counts_from_then_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    other = Holding()
    other.hold(70)
    bench.recorder.use(other)
    with bench.recorder.stage(Stage.MODEL_BUILD):
        other.hold(7)
    assert bench.totals()[Stage.MODEL_BUILD].peak_allocated == 77


@given(st.lists(st.sampled_from(["use", "enter", "leave", "begin", "end", "rest"]), max_size=14))
def test_every_second_is_credited_once(words: list[str]) -> None:
    """Whatever ends a window, a change of the meter too: what the stages took adds up to what went by."""
    clock, passed, depth, iteration = Clock(), 0.0, 0, 0
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_now", clock)
        bench = Bench(Path(folder), iterations=20)
        recorder = bench.recorder
        for word in [*words, "rest"]:
            clock.now += 1.0
            passed += 1.0
            if word == "use":
                recorder.use(Holding())
            elif word == "enter":
                recorder.enter(Stage.FORWARD)
                depth += 1
            elif word == "leave" and depth:
                recorder.leave()
                depth -= 1
            elif word == "begin" and not depth:
                iteration += 1
                recorder.begin_iteration(iteration)
            elif word == "end" and iteration and not depth:
                recorder.end_iteration(1000.0)
            elif word == "rest":
                recorder.rest_in(Stage.TEARDOWN)
        assert sum(one.seconds for one in bench.totals().values()) == passed


def test_a_wrapped_function_keeps_its_name_and_signature(bench: Bench) -> None:
    def forward_step(batch: int, *, last: bool = False) -> int:
        """Doc."""
        assert bench.recorder.current is Stage.FORWARD
        return batch + last

    wrapped = bench.recorder.wrap(Stage.FORWARD, forward_step)
    assert wrapped(1, last=True) == 2
    assert (wrapped.__name__, wrapped.__doc__) == ("forward_step", "Doc.")
    assert inspect.signature(wrapped) == inspect.signature(forward_step)
    assert bench.recorder.current is Stage.STARTUP


def test_the_stage_of_an_exception_is_the_innermost_that_it_left(bench: Bench) -> None:
    recorder = bench.recorder
    recorder.begin_iteration(2)
    recorder.microbatch(1)
    with pytest.raises(KeyError) as raised, recorder.stage(Stage.BACKWARD):
        recorder.wrap(Stage.REPLAY, fail_with(KeyError("x")))()
    assert recorder.current is Stage.BETWEEN_STEPS
    recorder.caught(raised.value)
    kept = bench.record().exception
    assert kept is not None
    assert (kept.stage, kept.iteration, kept.microbatch) == (Stage.REPLAY, 2, 1)
    assert kept.type == "KeyError"


def fail_with(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_an_exception_explained_by_another_keeps_the_stage_where_it_began(bench: Bench) -> None:
    recorder = bench.recorder
    with pytest.raises(RuntimeError) as raised, recorder.stage(Stage.OPTIMIZER_STEP):  # noqa: PT012
        try:
            with recorder.stage(Stage.OPTIMIZER_INIT):
                raise MemoryError("16 GiB")
        except MemoryError as error:
            raise RuntimeError("step failed") from error
    recorder.caught(raised.value)
    kept = bench.record().exception
    assert kept is not None
    assert (kept.stage, kept.chain, kept.chain_stages) == (
        Stage.OPTIMIZER_INIT,
        ["MemoryError: 16 GiB"],
        [Stage.OPTIMIZER_INIT],
    )


def test_an_exception_of_a_cleanup_tells_where_the_first_one_was_raised(bench: Bench) -> None:
    recorder = bench.recorder
    with pytest.raises(OSError) as raised:  # noqa: PT012
        try:
            with recorder.stage(Stage.FORWARD):
                raise MemoryError("first")
        finally:
            with recorder.stage(Stage.TEARDOWN):
                raise OSError("second")
    recorder.caught(raised.value)
    kept = bench.record().exception
    assert kept is not None
    assert (kept.stage, kept.chain, kept.chain_stages) == (Stage.TEARDOWN, ["MemoryError: first"], [Stage.FORWARD])


def test_stages_that_an_exception_left_open_are_closed_by_the_one_around_them(bench: Bench) -> None:
    recorder = bench.recorder
    with pytest.raises(ValueError), recorder.stage(Stage.BACKWARD):  # noqa: PT012
        recorder.enter(Stage.GRAD_SYNC)
        raise ValueError("a hook without a finally")
    assert recorder.depth == 0


def test_an_exception_under_way_is_in_the_facts_until_somebody_handles_it(bench: Bench) -> None:
    recorder = bench.recorder
    with pytest.raises(ValueError), recorder.stage(Stage.FORWARD):
        raise ValueError("no room")
    unwinding = bench.record().exception
    assert unwinding is not None
    assert (unwinding.message, unwinding.stage) == ("no room", Stage.FORWARD)
    with recorder.stage(Stage.FORWARD):
        pass
    assert not bench.read().flag(FLAG_UNWINDING)
    assert bench.record().exception is None


def test_a_stage_that_ends_well_has_handled_what_was_raised_inside_of_it(bench: Bench) -> None:
    recorder = bench.recorder
    with recorder.stage(Stage.MODEL_BUILD):
        with pytest.raises(ValueError), recorder.stage(Stage.DATA_BUILD):
            raise ValueError("no such file")
        assert bench.read().flag(FLAG_UNWINDING)
    assert not bench.read().flag(FLAG_UNWINDING)


def test_a_full_node_does_not_take_the_place_of_the_exception(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orchestrator.trial.facts.write_json", full)
    with pytest.raises(ValueError, match="the real one"), bench.recorder.stage(Stage.FORWARD):
        raise ValueError("the real one")
    assert "No space left on device" in capsys.readouterr().err


def test_the_end_of_an_iterator_is_no_failure(bench: Bench) -> None:
    with pytest.raises(StopIteration), bench.recorder.stage(Stage.FORWARD):
        next(iter([]))
    assert not bench.read().flag(FLAG_UNWINDING)


def test_one_leave_too_many_changes_nothing_and_is_noted(bench: Bench) -> None:
    bench.recorder.leave()
    with bench.recorder.stage(Stage.FORWARD):
        assert bench.recorder.current is Stage.FORWARD
    bench.recorder.finished()
    assert bench.record().notes == ["1 stage(s) were left more often than entered"]


def test_what_recording_cost_is_published(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    bench.recorder.begin_iteration(1)
    clock.step = 0.5  # two looks at the clock a call: each call then takes half a second
    with bench.recorder.stage(Stage.FORWARD):
        pass
    bench.recorder.end_iteration(1000.0)
    clock.step = 0.0
    retries, ooms, seconds, calls = bench.read().counters
    assert (retries, ooms, seconds, calls) == (3, 1, 1.5, 4)


def test_a_recorder_that_costs_too_much_pauses_inside_the_steady_window_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    bench = Bench(tmp_path, window=(3, 4))
    clock.step = 0.01
    for number in range(1, 6):
        bench.recorder.begin_iteration(number)
        for _ in range(2):
            with bench.recorder.stage(Stage.FORWARD):
                bench.meter.hold(number * 100)
                bench.meter.hold(-number * 100)
        bench.recorder.end_iteration(1000.0)
    assert bench.read().flag(FLAG_PAUSED)
    rows = bench.read().iterations()
    forward = [{row.stage: row for row in iteration.stages}[Stage.FORWARD] for iteration in rows]
    assert [row.entries for row in forward] == [2, 2, 2, 2, 2]
    assert [row.peak_allocated for row in forward] == [100, 200, None, None, 500]
    assert [row.peak_allocated for row in rows] == [100, 200, 300, 400, 500]
    record = bench.record()
    assert record.recorder["paused"] is True
    assert "paused in some of iterations 3 to 4" in record.notes[0]


def test_a_cheap_recorder_does_not_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    bench = Bench(tmp_path, window=(2, 3))
    clock.step = 1e-6
    for number in range(1, 4):
        bench.recorder.begin_iteration(number)
        bench.recorder.end_iteration(1000.0)
    assert not bench.read().flag(FLAG_PAUSED)


def test_the_cost_of_the_steady_steps_is_told_as_a_share_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    bench = Bench(tmp_path, window=(3, 4))
    shares = []
    for number in range(1, 6):
        clock.step = 0.0 if number < 3 else 0.001
        bench.recorder.begin_iteration(number)
        with bench.recorder.stage(Stage.FORWARD):
            pass
        bench.recorder.end_iteration(2000.0 if number < 4 else 6000.0)
        shares.append(bench.record().recorder["steady_share"])
    # four calls of the recorder in each; what the window cost stands, whatever comes after it
    assert shares[:2] == [None, None]
    assert shares[2:] == pytest.approx([0.002, 0.001, 0.001])


def test_the_first_state_of_an_optimizer_does_not_pause_a_cheap_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    bench = Bench(tmp_path, window=(2, 3))
    for number in range(1, 4):
        clock.step = 0.001 if number == 1 else 1e-6
        bench.recorder.begin_iteration(number)
        for _ in range(642 if number == 1 else 1):
            with bench.recorder.stage(Stage.OPTIMIZER_INIT):
                pass
        bench.recorder.end_iteration(1000.0)
    assert not bench.read().flag(FLAG_PAUSED)


def test_an_iteration_that_begins_inside_a_stage_counts_once_between_steps(bench: Bench) -> None:
    recorder = bench.recorder
    with recorder.stage(Stage.EVALUATE):
        recorder.begin_iteration(1)
        with recorder.stage(Stage.FORWARD):
            pass
    recorder.end_iteration(1.0)
    entries = {row.stage: row.entries for row in bench.read().stages()}
    assert entries == {Stage.STARTUP: 1, Stage.EVALUATE: 1, Stage.BETWEEN_STEPS: 1}


def test_the_running_peak_is_that_of_every_iteration(bench: Bench) -> None:
    for number, size in ((1, 100), (2, 900), (3, 300)):
        bench.recorder.begin_iteration(number)
        with bench.recorder.stage(Stage.FORWARD):
            bench.meter.hold(size)
            bench.meter.hold(-size)
    assert bench.recorder.running_peak() == (900, 1800)


def test_where_the_rank_is_stays_true_while_the_recorder_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    bench = Bench(tmp_path, window=(3, 4))
    clock.step = 1.0
    for number in (1, 2):
        bench.recorder.begin_iteration(number)
        bench.recorder.end_iteration(1.0)
    bench.recorder.begin_iteration(3)
    assert bench.read().flag(FLAG_PAUSED)
    with bench.recorder.stage(Stage.OPTIMIZER_STEP):
        assert bench.read().last.stage is Stage.OPTIMIZER_STEP


def test_alternate_recording_leaves_out_every_second_iteration(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.recorder.alternate = True
    for number in range(1, 5):
        bench.recorder.begin_iteration(number)
        with bench.recorder.stage(Stage.FORWARD):
            bench.meter.hold(0)
        bench.recorder.end_iteration(1e9)
    measured = [
        {row.stage: row for row in iteration.stages}[Stage.FORWARD].peak_allocated is not None
        for iteration in bench.read().iterations()
    ]
    assert measured == [True, False, True, False]


def test_a_dear_recorder_still_records_some_iterations_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    bench = Bench(tmp_path, window=(3, 22), iterations=24)
    for number in range(1, 25):
        clock.step = 0.0
        bench.recorder.begin_iteration(number)
        clock.step = 0.006 if not bench.recorder._paused else 0.0005
        with bench.recorder.stage(Stage.FORWARD):
            bench.meter.hold(0)
        clock.step = 0.0
        bench.recorder.end_iteration(1000.0)
    record = bench.record()
    recorded = [
        row.number
        for row in record.iterations
        if {stage.stage: stage for stage in row.stages}[Stage.FORWARD].peak_allocated is not None
    ]
    # 1.2 % of a step where it records, 0.1 % where it does not: about every third can be afforded
    assert [number for number in recorded if not 3 <= number <= 22] == [1, 2, 23, 24]
    assert len(recorded) in (4 + 6, 4 + 7)
    assert max(later - earlier for earlier, later in itertools.pairwise(recorded)) <= 3
    assert record.recorder["paused"] is True
    assert record.recorder["steady_share"] <= COST_LIMIT


@given(
    first=st.integers(1, 4),
    steps=st.lists(
        # (seconds of the step, seconds that recording takes of it, the part of them that a paused one still takes)
        st.tuples(st.floats(0.01, 100), st.floats(0, 1), st.floats(0, 0.1)),
        min_size=1,
        max_size=60,
    ),
)
def test_what_is_recorded_keeps_the_window_below_the_limit(first: int, steps: list[tuple[float, float, float]]) -> None:
    """But for what the last one recorded took more than those before it made expect, and for what pauses take."""
    whole: list[Cost] = []
    window = Cost()
    allowed = 0.0
    for number, (seconds, recording, left) in enumerate(steps, start=1):
        expected = (
            Cost(*(sum(part) / len(whole) for part in zip(*map(astuple, whole), strict=True))) if whole else Cost()
        )
        if number < first or affordable(window, whole):
            cost = Cost(recording, seconds)
            misjudged = recording - expected.recording + COST_LIMIT * (expected.steps - seconds)
            allowed = max(allowed, misjudged) if whole else allowed + recording
            whole = [*whole[-7:], cost] if number > 1 else whole
        else:
            cost = Cost(recording * left, seconds)
            allowed += cost.recording
        if number >= first:
            window = window.plus(cost)
            assert window.recording <= COST_LIMIT * window.steps + allowed + 1e-9


def test_a_long_run_leaves_the_recorder_no_more_to_keep_than_a_short_one(tmp_path: Path) -> None:
    """What it keeps of each iteration it would add up in each."""
    bench = Bench(tmp_path, window=(1, 400), iterations=400)
    for number in range(1, 401):
        bench.recorder.begin_iteration(number)
        bench.recorder.end_iteration(1000.0)
    assert all(len(kept) <= len(Stage) for kept in vars(bench.recorder).values() if isinstance(kept, list))


@given(
    st.recursive(
        st.sampled_from(list(Stage)).map(lambda stage: (stage, [])),
        lambda inner: st.tuples(st.sampled_from(list(Stage)), st.lists(inner, max_size=3)),
        max_leaves=12,
    )
)
def test_the_stack_is_empty_again_after_any_nesting(tree: tuple[Stage, list[Any]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))

        def visit(node: tuple[Stage, list[Any]]) -> int:
            with bench.recorder.stage(node[0]):
                return 1 + sum(visit(inner) for inner in node[1])

        visits = visit(tree)
        assert bench.recorder.depth == 0
        assert bench.read().last.stage is Stage.STARTUP
        entered = sum(row.entries for row in bench.read().stages())
        assert 1 <= entered <= visits + 1


def test_facts_are_joined_and_without_secrets(bench: Bench) -> None:
    bench.recorder.facts(software={"torch": "2.13"}, notes=["one"], device={"kind": "cpu"})
    bench.recorder.facts(software={"python": "3.11"}, notes=["two"], effective={"hf_token": "abc", "path": Path("/x")})
    assert read_json(bench.folder / "rank-00000.facts.json") == {
        "software": {"torch": "2.13", "python": "3.11"},
        "notes": ["one", "two"],
        "device": {"kind": "cpu"},
        "effective": {"hf_token": "<redacted>", "path": "/x"},
    }


@pytest.mark.parametrize(("said", "kept"), [((), None), ((True,), True), ((False,), False)])
def test_optimizer_state_is_none_until_somebody_looked(bench: Bench, said: tuple[bool, ...], kept: bool | None) -> None:
    for exists in said:
        bench.recorder.optimizer_state_exists(exists)
    assert bench.record().optimizer_state is kept
