"""Our own cost of a trial on this machine, beyond the trainer's imports and steps.

A study of trials whose trainer does nothing is run twice over: by the driver, and as the bare trainers would run (the
same child processes, started directly). The difference a trial is ours: driver, supervisors, records.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.dispatch.submit import start_driver, wait_for_end, write_batch
from orchestrator.records.spec import Batch, BatchTrial

TRIALS, RANKS, ROUNDS = 5, 2, 3

_BARE = "from orchestrator.trial.child import main"
_TRAINER = """
def train(spec, recorder, rank, world_size, local_rank):
    recorder.optimizer_state_exists()
    recorder.begin_iteration(1)
    recorder.end_iteration(1.0, 1.0)
    recorder.measured()
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="local-trial-") as folder:
        here = Path(folder)
        (here / "idle_trainer.py").write_text(_TRAINER)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        ours = [driven(here, index) for index in range(ROUNDS)]
        bare = [imports() for _ in range(ROUNDS)]
    cost = statistics.median(ours) - statistics.median(bare)
    print(
        json.dumps(
            {
                "benchmark": "local_trial",
                "own_seconds_per_trial": round(cost, 3),
                "goal_seconds": 2.0,
                "driven_seconds_per_trial": [round(value, 3) for value in ours],
                "bare_seconds_per_trial": [round(value, 3) for value in bare],
                "ranks": RANKS,
                "cores": os.cpu_count(),
                "load": round(os.getloadavg()[0], 2),
            }
        )
    )


def driven(folder: Path, index: int) -> float:
    """Seconds a trial, from handing a batch over to its driver's end."""
    trials = [
        BatchTrial(f"{index}-{number}", str(number), "trial", "idle_trainer:train", RANKS, {}, (1, 1), 1)
        for number in range(TRIALS)
    ]
    results = folder / "results"
    batch = Batch(f"b{index}", "benchmark", time.time(), str(results), trials, {"kind": "local"})
    started = time.perf_counter()
    start_driver(write_batch(batch))
    if not wait_for_end(results, batch.batch, 300):
        raise RuntimeError("the driver did not end")
    return (time.perf_counter() - started) / TRIALS


def imports() -> float:
    """Seconds that the ranks' trainers need side by side to import what they import and end."""
    started = time.perf_counter()
    ranks = [subprocess.Popen([sys.executable, "-c", _BARE]) for _ in range(RANKS)]
    for rank in ranks:
        rank.wait()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
