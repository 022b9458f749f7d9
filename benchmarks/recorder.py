"""What one edge of a stage costs, with each meter that this machine has.

Each figure is the fastest and the median of rounds, in microseconds: recording, recording while paused, and for
comparison a bare call of a Python function in the same run. With CUDA, also what torch's own `memory_stats` takes. The
goal is the 10 to 20 us at which a step of 300 ms with 75 edges stays below 0.5 %.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.records.beacon import BeaconWriter
from orchestrator.trial.meter import CudaMeter, Meter, NullMeter
from orchestrator.trial.recorder import Recorder
from orchestrator.vocabulary import Stage

ROUNDS, CALLS = 15, 2000


def main() -> None:
    result: dict[str, Any] = {"benchmark": "recorder", "unit": "us per edge", "bare_call": timed(lambda: None)}
    for name, meter in meters().items():
        with tempfile.TemporaryDirectory(prefix="recorder-", dir=shared_memory()) as folder:
            result[name] = edges(Path(folder), meter)
    if "cuda" in result:
        import torch

        result["cuda"]["torch.cuda.memory_stats"] = timed(torch.cuda.memory_stats)
    print(json.dumps(result | {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}))


def meters() -> dict[str, Meter]:
    found: dict[str, Meter] = {"null": NullMeter()}
    try:
        import torch
    except ModuleNotFoundError:
        return found
    from orchestrator.trial.mcore_cpu.memory import TrackedMemory

    found["tracked"] = TrackedMemory()  # type: ignore[assignment]  # a meter by its methods
    if torch.cuda.is_available():
        found["cuda"] = CudaMeter()
    return found


def edges(folder: Path, meter: Meter) -> dict[str, Any]:
    recorder = Recorder(BeaconWriter(folder / "beacon", 4), folder / "facts.json", meter, (2, 3))
    recorder.begin_iteration(1)

    def visit() -> None:
        recorder.enter(Stage.FORWARD)
        recorder.leave()

    recording = timed(visit, edges_a_call=2)
    recorder.alternate = True
    recorder.begin_iteration(2)
    paused = timed(visit, edges_a_call=2)
    return {"recording": recording, "paused": paused}


def timed(call: Callable[[], Any], edges_a_call: int = 1) -> dict[str, float]:
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - started) / CALLS / edges_a_call * 1e6)
    return {"fastest": round(min(rounds), 2), "median": round(statistics.median(rounds), 2)}


def shared_memory() -> str | None:
    """Where beacons lie, too."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    main()
