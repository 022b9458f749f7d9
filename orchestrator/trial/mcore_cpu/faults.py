"""Faults committed on purpose, for tests of what becomes of them: `trainer.fault={stage: …, kind: …}`.

A testing aid: a trial with a fault measures nothing that anybody wants to know. Kinds:

    oom        the out-of-memory error, at the visit itself or at the stage's n-th allocation from there on
    not_finite one element of a gradient becomes NaN
    sleep      the rank stops making progress for `seconds`
    raise      RuntimeError
    exit       SystemExit with status 1
    kill       SIGKILL to this process
    segfault   SIGSEGV to this process
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from orchestrator.trial.mcore_cpu.memory import TrackedMemory
from orchestrator.trial.mcore_cpu.request import Fault
from orchestrator.trial.recorder import Recorder
from orchestrator.vocabulary import SETUP_STAGES, Stage

_ONCE = SETUP_STAGES | {Stage.TEARDOWN}
"""Stages outside of iterations: `iteration` does not matter there."""
_REQUEST = 2 * 2**20
"""Bytes that an `oom` without an allocation of its own says it asked for."""


def commit_fault(
    fault: Fault | None, recorder: Recorder, memory: TrackedMemory, rank: int, spoil_gradient: Callable[[], None]
) -> None:
    """Let this rank commit `fault` when it enters the stage; nothing where there is none for this rank."""
    if fault is None or fault.rank != rank:
        return
    stage = Stage(fault.stage)
    plan = _Plan(fault, stage, recorder, memory, spoil_gradient)
    plan.follow()


class _Plan:
    """Waits for the right visit by standing before the recorder's methods that change the stage."""

    def __init__(
        self,
        fault: Fault,
        stage: Stage,
        recorder: Recorder,
        memory: TrackedMemory,
        spoil_gradient: Callable[[], None],
    ) -> None:
        self.fault = fault
        self.stage = stage
        self.recorder = recorder
        self.memory = memory
        self.spoil_gradient = spoil_gradient
        self.visits = 0
        self.armed_at: int | None = None
        """Depth of the visit whose allocations are being counted."""
        self.allocations_left: int | None = None
        """How many are to succeed before the failing one, between visits."""
        self.enter = recorder.enter
        self.leave = recorder.leave
        self.begin_iteration = recorder.begin_iteration
        self.rest_in = recorder.rest_in

    def follow(self) -> None:
        for name in ("enter", "leave", "begin_iteration", "rest_in"):
            setattr(self.recorder, name, getattr(self, f"_{name}"))

    def _enter(self, stage: Stage) -> None:
        self.enter(stage)
        self._arrive(stage)

    def _rest_in(self, stage: Stage) -> None:
        self._disarm(0)
        self.rest_in(stage)
        if stage in _ONCE:
            self._arrive(stage)

    def _begin_iteration(self, number: int) -> None:
        self._disarm(0)
        self.begin_iteration(number)
        self._arrive(Stage.BETWEEN_STEPS)

    def _leave(self) -> None:
        self._disarm(self.recorder.depth)
        self.leave()

    def _disarm(self, depth: int) -> None:
        if self.armed_at == depth:
            self.armed_at = None
            self.allocations_left = self.memory.spare()

    def _arm(self, number: int) -> None:
        self.armed_at = self.recorder.depth
        self.memory.fail_allocation(number)

    def _arrive(self, stage: Stage) -> None:
        if stage is self.stage and (stage in _ONCE or self.recorder.iteration == self.fault.iteration):
            self.visits += 1
            if self.allocations_left is not None:
                self._arm(self.allocations_left)
            elif self.visits == self.fault.entry:
                self._commit()

    def _commit(self) -> None:
        kind = self.fault.kind
        print(f"committing the fault {kind} in {self.stage}", file=sys.stderr, flush=True)
        if kind == "oom" and self.fault.allocation is not None:
            self._arm(self.fault.allocation)
        elif kind == "oom":
            raise self.memory.refuse(_REQUEST)
        elif kind == "not_finite":
            self.spoil_gradient()
        elif kind == "sleep":
            time.sleep(self.fault.seconds)
        elif kind == "raise":
            raise RuntimeError(f"fault committed in {self.stage}")
        elif kind == "exit":
            sys.exit(1)
        else:
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSEGV)
