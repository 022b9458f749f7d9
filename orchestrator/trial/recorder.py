"""The stage recorder: where a rank is, and what memory each stage needed."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.records.beacon import (
    FLAG_FINISHED,
    FLAG_MEASURED,
    FLAG_OPTIMIZER_CHECKED,
    FLAG_OPTIMIZER_STATE,
    FLAG_PAUSED,
    FLAG_UNWINDING,
    BeaconWriter,
)
from orchestrator.records.rank import IterationRecord
from orchestrator.trial.cost import Cost, affordable
from orchestrator.trial.facts import FactsFile
from orchestrator.trial.garbage import collecting_seconds
from orchestrator.trial.meter import NOT_READ, Meter
from orchestrator.trial.raised import exception_record, note_place
from orchestrator.trial.visit import Visit
from orchestrator.vocabulary import Stage

F = TypeVar("F", bound=Callable[..., Any])

_OUTRANKING = sum(
    1 << stage.code for stage in (Stage.GRAPH_CAPTURE, Stage.EVALUATE, Stage.CHECKPOINT_LOAD, Stage.CHECKPOINT_SAVE)
)
"""Stages that keep what happens inside them, one bit each: a forward of an evaluation is `evaluate`."""

_JUDGED_BY = 8
"""How many iterations tell what the next one will cost."""

_now = time.perf_counter


class Recorder:
    """Keeps the current stage in the beacon and credits time and peak memory to it.

    The stages are one stack for the whole process, not one for each thread: autograd runs backward hooks on a thread
    of its own. Each edge (a stage entered or left) ends a window: its time and peak go to the stage that was on top,
    so a stage's figures leave out what is nested in it. Below all stages lies a base: `startup` first, then
    `between_steps` from the first iteration on.
    """

    def __init__(self, beacon: BeaconWriter, facts_path: Path, meter: Meter, window: tuple[int, int]) -> None:
        """`window` is the first and last iteration of the steady window, counted from 1, both included."""
        self.meter = meter
        self._beacon = beacon
        self._facts = FactsFile(facts_path)
        self.alternate = False
        """Record odd iterations only: the difference to the even ones is what recording costs."""
        self._first, self._last = window
        self.codes = [Stage.STARTUP.code]
        """The base's code, then those of the stages entered. Only read it."""
        self._new = 1
        """1 until the first window of the stage on top is credited. Those below have theirs: entering one ends it."""
        self._iteration = 0
        self._microbatch = 0
        self._peak_allocated = NOT_READ
        self._peak_reserved = NOT_READ
        self._paused = False
        self._paused_entries = [0] * len(Stage)
        self.unwinding = False
        """An exception left a stage, and no stage was entered since."""
        self._surplus_leaves = 0
        self._seconds = 0.0
        self._calls = 0
        self._seconds_before = 0.0
        """What recording had cost when this iteration began."""
        self._garbage_before: float | None = None
        """Seconds of garbage collection when the iteration before ended, or this one began if it is the first."""
        self._finished_first = False
        self._whole_costs: list[Cost] = []
        """Of each of the last iterations that were recorded whole, without the run's first."""
        self._steady_cost = Cost()
        """Of all iterations of the steady window so far, recorded or not."""
        self._unix = time.time() - _now()
        """Unix seconds at which the recorder's clock stood at 0; taken anew each iteration, as wall clocks are set."""
        self._window_from = _now()
        self._write_word()

    # Stages: the hot path. What an edge costs is mostly what it touches: in training, other work has taken the caches
    # since the last one. So there are few objects and calls here, and no hash of a `Stage`, which is Python code.

    def enter(self, stage: Stage) -> None:
        """Begin a stage inside the current one. Pair it with `leave`, or use `stage` and `wrap`."""
        started = _now()
        if self.unwinding:
            self.handled()
        codes = self.codes
        top = codes[-1]
        kept = _OUTRANKING >> top & 1
        code = top if kept else stage.code
        if self._paused:
            self._paused_edge(top, code, started)
        else:
            allocated, reserved, end, end_reserved = self.meter.edge()
            seconds = started - self._window_from
            self._beacon.edge(
                top, self._new, allocated, reserved, end, end_reserved, seconds, code, self._unix + started
            )
        codes.append(code)
        self._new = 1 - kept
        self._calls += 1
        now = self._window_from = _now()
        self._seconds += now - started

    def leave(self) -> None:
        """End the stage entered last. One `leave` too many changes nothing, and is noted at the end."""
        started = _now()
        codes = self.codes
        if len(codes) == 1:
            self._surplus_leaves += 1
            return
        top, code = codes[-1], codes[-2]
        if self._paused:
            self._paused_edge(top, code, started)
        else:
            allocated, reserved, end, end_reserved = self.meter.edge()
            seconds = started - self._window_from
            self._beacon.edge(
                top, self._new, allocated, reserved, end, end_reserved, seconds, code, self._unix + started
            )
        del codes[-1]
        self._new = 0
        self._calls += 1
        now = self._window_from = _now()
        self._seconds += now - started

    def _paused_edge(self, top: int, code: int, started: float) -> None:
        self._paused_entries[top] += self._new
        self._beacon.stage_at(code, self._unix + started)

    def stage(self, stage: Stage) -> Visit:
        """`with recorder.stage(Stage.FORWARD): …`; an exception that leaves it is noted with its place."""
        return Visit(self, stage)

    def wrap(self, stage: Stage, function: F) -> F:
        """`function`, each call of which is a visit to `stage`. Name and signature stay (functools.wraps)."""

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            # A `Visit`, written out: an object and three calls less.
            depth = len(self.codes)
            self.enter(stage)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self.passing(error)
                self.return_to(depth - 1)
                raise
            if self.unwinding:
                self.handled()
            while len(self.codes) > depth:
                self.leave()
            return result

        return wrapped  # type: ignore[return-value]  # mypy cannot see that wraps keeps the signature

    @property
    def current(self) -> Stage:
        """The stage on top."""
        return Stage.from_code(self.codes[-1])

    @property
    def iteration(self) -> int:
        """The iteration that began last, counted from 1; 0 during set-up."""
        return self._iteration

    # Iterations

    def begin_iteration(self, number: int) -> None:
        """Iteration `number` (from 1) begins; outside of stages it is in `between_steps`."""
        started = _now()
        if self.unwinding:
            self.handled()
        self._close_window(started)
        self._pause_or_resume(number)
        self._iteration = number
        self._microbatch = 0
        if self._garbage_before is None:
            self._garbage_before = collecting_seconds()
        self._beacon.begin_iteration(number)
        self._rest_in(Stage.BETWEEN_STEPS.code)
        self._seconds_before = self._seconds
        self._arrive(started)

    def microbatch(self, number: int) -> None:
        """The microbatch that the next stages belong to, counted from 0."""
        self._microbatch = number
        self._write_word()

    def end_iteration(
        self,
        ms: float,
        loss: float | None = None,
        grad_norm: float | None = None,
        skipped: bool = False,
        nan: bool = False,
        tflops: float | None = None,
    ) -> None:
        """The iteration is complete: `ms` wall milliseconds of the step, and what the framework said of it.

        Garbage collected since the iteration before ended counts as this one's.

        What this rank does not know (the loss, on all but the last pipeline stage) stays None. `tflops` is TFLOP/s of
        one device.
        """
        started = _now()
        self._close_window(started)
        garbage = collecting_seconds()
        collected = None if self._garbage_before is None else min(ms, 1000 * (garbage - self._garbage_before))
        self._garbage_before = garbage
        self._beacon.end_iteration(
            IterationRecord(
                number=self._iteration,
                milliseconds=ms,
                loss=loss,
                grad_norm=grad_norm,
                skipped=skipped,
                nan=nan,
                tflops_per_gpu=tflops,
                gc_milliseconds=collected,
                peak_allocated=None if self._peak_allocated == NOT_READ else self._peak_allocated,
                peak_reserved=None if self._peak_reserved == NOT_READ else self._peak_reserved,
            )
        )
        self._arrive(started)
        cost = Cost(self._seconds - self._seconds_before, ms / 1000)
        if not self._paused and self._finished_first:
            self._whole_costs = [*self._whole_costs[1 - _JUDGED_BY :], cost]
        self._finished_first = True
        if self._first <= self._iteration <= self._last:
            self._steady_cost = self._steady_cost.plus(cost)
        self._publish()

    # Everything else

    def use(self, meter: Meter) -> None:
        """Measure with `meter` from now on: a trainer has one only once its device is there."""
        started = _now()
        self._close_window(started)
        self.meter = meter
        meter.reset()
        self._arrive(started)

    def rest_in(self, stage: Stage) -> None:
        """The stage outside of all others: `teardown`, once training is over."""
        started = _now()
        self._close_window(started)
        self._rest_in(stage.code)
        self._arrive(started)

    def running_peak(self) -> tuple[int, int]:
        """The largest (allocated, reserved) since the recorder's first window; (-1, -1) where nothing measures.

        The device's own maximum is reset at every edge: a framework's memory report must be given this one.
        """
        (allocated, reserved), (credited, credited_reserved) = self.meter.peak(), self._beacon.peaks()
        return max(self._peak_allocated, credited, allocated), max(self._peak_reserved, credited_reserved, reserved)

    def facts(self, **facts: Any) -> None:
        """Merge into the facts file, at once and whole, without secrets.

        `software`, `device`, `effective` and `notes` are the ones that a record has a place for. Objects are joined
        key by key, lists are extended, anything else is replaced.

        Raises:
            OSError: the node-local folder is full or gone.
        """
        self._facts.merge(facts)

    def optimizer_state_exists(self, exists: bool = True) -> None:
        """Whether the optimizer holds state; say it at the end of the steady window at the latest."""
        self._beacon.raise_flag(FLAG_OPTIMIZER_CHECKED | (FLAG_OPTIMIZER_STATE if exists else 0))

    def measured(self) -> None:
        """The steady window is complete: what happens from here on cannot spoil the measurement."""
        self._publish()
        self._beacon.raise_flag(FLAG_MEASURED)

    def finished(self) -> None:
        """The trainer returned by itself."""
        self._close()
        self._beacon.raise_flag(FLAG_FINISHED)

    def left(self, error: SystemExit) -> None:
        """The trainer left by `SystemExit` and called it a success, which frameworks do in the middle of training."""
        note_place(error, self.current, self._iteration, self._microbatch)
        self._close()
        self._facts.merge({"notes": [f"the trainer left with status 0 in {exception_record(error).stage}"]})
        self._beacon.lower_flag(FLAG_UNWINDING)

    def caught(self, error: BaseException) -> None:
        """The exception that ended the trainer: its frames, its chain, and the stage it was raised in.

        Raises:
            OSError: the node-local folder is full or gone.
        """
        note_place(error, self.current, self._iteration, self._microbatch)
        self._close()
        self._facts.merge({"exception": exception_record(error)})

    def passing(self, error: BaseException) -> None:
        """An exception is about to leave the stage on top. `stage` and `wrap` call this; so must hooks of other kinds.

        Where it came from is kept in the facts at once, because a failed trainer may hang while it cleans up.
        """
        if isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)):
            return
        if note_place(error, self.current, self._iteration, self._microbatch):
            self.unwinding = True
            self._publish()
            try:
                self._facts.merge({"raised": exception_record(error)})
            except OSError as failure:
                # The exception itself must get through: this one would take its place.
                print(f"the facts could not be written: {failure}", file=sys.stderr)
            self._beacon.raise_flag(FLAG_UNWINDING)

    def handled(self) -> None:
        """The exception that left a stage did not end the trainer: a stage began since, or ended well."""
        if self.unwinding:
            self.unwinding = False
            self._beacon.lower_flag(FLAG_UNWINDING)

    def return_to(self, depth: int) -> None:
        """Leave all stages above `depth` of them, however many were entered and not left."""
        while len(self.codes) - 1 > depth:
            self.leave()

    @property
    def depth(self) -> int:
        """How many stages are entered; the base does not count."""
        return len(self.codes) - 1

    def _close_window(self, started: float) -> None:
        """End the window of the stage on top outside of the hot path. Where edges are paused, its peak still counts."""
        allocated, reserved, end, end_reserved = self.meter.edge()
        top = self.codes[-1]
        if self._paused:
            self._paused_entries[top] += self._new
        else:
            seconds = started - self._window_from
            self._beacon.credit(top, self._new, allocated, reserved, end, end_reserved, seconds)
        self._new = 0
        for code, entries in enumerate(self._paused_entries):
            if entries:
                self._beacon.credit(code, entries, NOT_READ, NOT_READ, NOT_READ, NOT_READ, 0.0)
                self._paused_entries[code] = 0
        credited, credited_reserved = self._beacon.peaks()
        self._peak_allocated = max(self._peak_allocated, allocated, credited)
        self._peak_reserved = max(self._peak_reserved, reserved, credited_reserved)

    def _rest_in(self, code: int) -> None:
        """The base is the stage of `code` from here on, and is entered."""
        self.codes[0] = code
        if len(self.codes) == 1:
            self._new = 1
        else:  # only a stage on top can be new
            self._beacon.credit(code, 1, NOT_READ, NOT_READ, NOT_READ, NOT_READ, 0.0)

    def _arrive(self, started: float) -> None:
        """Say where the rank is now, and begin the next window. `started` is when this call of the recorder began."""
        self._write_word()
        self._calls += 1
        now = self._window_from = _now()
        self._seconds += now - started
        self._unix = time.time() - now

    def _write_word(self) -> None:
        self._beacon.at_code(self.codes[-1], self._iteration, self._microbatch)

    def _pause_or_resume(self, number: int) -> None:
        paused = False
        if self._first <= number <= self._last and not affordable(self._steady_cost, self._whole_costs):
            paused = True
            self._beacon.raise_flag(FLAG_PAUSED)
        self._paused = paused or (self.alternate and number % 2 == 0)

    def _publish(self) -> None:
        retries, ooms = self.meter.retries_and_ooms()
        self._beacon.counters(retries, ooms, self._seconds, self._calls, self._steady_cost.share)

    def _close(self) -> None:
        started = _now()
        self._close_window(started)
        self._arrive(started)
        self._publish()
        if self._surplus_leaves:
            self._facts.merge({"notes": [f"{self._surplus_leaves} stage(s) were left more often than entered"]})
