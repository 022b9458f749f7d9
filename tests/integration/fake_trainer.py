"""A trainer of a few milliseconds, for what happens around one: it walks through the stages and does as it is told.

`config["fake"]`, or by its module's name the JSON in FAKE_TOLD (which is no part of a trial's identity), may say:
`seconds` of every stage, and what `ranks` do in which `stage` of which `iteration`: `raise`, `exit`, `kill`,
`kill_supervisor`, `hang`, `eat` (memory); with a `message`, and in one `attempt` alone where that is given.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from orchestrator.records.rank import IterationRecord  # noqa: F401  what a recorder's caller may build
from orchestrator.vocabulary import Stage

STAGES = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER_STEP)


def train(spec: Any, recorder: Any, rank: int, world_size: int, local_rank: int) -> None:
    told = spec.config.get("fake") or _told(spec.config.get("recompute_modules"))
    if told.get("attempt") not in (None, spec.attempt):
        told = {}
    for stage in (Stage.DISTRIBUTED_INIT, Stage.MODEL_BUILD, Stage.OPTIMIZER_BUILD):
        with recorder.stage(stage):
            _do(told, rank, stage, 0)
    recorder.optimizer_state_exists()
    for iteration in range(1, spec.train_iters + 1):
        recorder.begin_iteration(iteration)
        for stage in STAGES:
            with recorder.stage(stage):
                time.sleep(told.get("seconds", 0.0))
                _do(told, rank, stage, iteration)
        recorder.end_iteration(1.0, 2.5 / iteration, 1.0, False, False, None)
        if iteration == spec.steady_window[1]:
            recorder.measured()


def _told(modules: list[str] | None) -> dict[str, Any]:
    name = modules[0] if modules else "control"
    return json.loads(os.environ.get("FAKE_TOLD", "{}")).get(name, {})


def _do(told: dict[str, Any], rank: int, stage: Stage, iteration: int) -> None:
    if told.get("stage") != stage.value or told.get("iteration", 0) != iteration or rank not in told.get("ranks", [0]):
        return
    what = told["what"]
    if what == "raise":
        raise RuntimeError(told.get("message", "as it was told"))
    if what == "exit":
        sys.exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kill_supervisor":
        os.kill(os.getppid(), signal.SIGKILL)
    if what == "eat":
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)) * 16)
    time.sleep(600)
