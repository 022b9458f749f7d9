"""What one edge of a stage costs, with each meter that this machine has, hot and cold.

Hot is a tight loop. Cold is what training sees: before each edge, more memory than the caches hold is written, then
other Python code runs. Each figure is the fastest and the median of rounds (a cold round is the median of its edges),
in microseconds: recording, recording while paused, and for comparison a bare call of a Python function in the same run.
With CUDA, also the parts that a reading is made of, and what torch's own `memory_stats` takes. The goal is that a step
of 1.7 s with 370 edges stays below 0.5 %: 23 us an edge, cold.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.records.beacon import BeaconWriter
from orchestrator.trial.compiled_meter import Compilation, CompiledMeter
from orchestrator.trial.meter import CudaMeter, Meter, NullMeter
from orchestrator.trial.recorder import Recorder
from orchestrator.vocabulary import Stage

ROUNDS, CALLS = 15, 2000
COLD_ROUNDS, COLD_CALLS = 9, 12
EVICTED_BYTES = 96 * 2**20


def main() -> None:
    others = Others()
    result: dict[str, Any] = {"benchmark": "recorder", "unit": "us per edge"}
    result["bare_call"] = {"hot": timed(nothing), "cold": timed_cold([nothing], others)}
    for name, meter in meters().items():
        with tempfile.TemporaryDirectory(prefix="recorder-", dir=shared_memory()) as folder:
            result[name] = edges(Path(folder), meter, others)
    if "cuda" in result:
        result["cuda"]["parts"] = cuda_parts(others)
    print(json.dumps(result | {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}))


def nothing() -> None:
    pass


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
        with Compilation() as compilation:
            found["cuda_compiled"] = CompiledMeter(compilation.load())
    return found


def edges(folder: Path, meter: Meter, others: Others) -> dict[str, Any]:
    recorder = Recorder(BeaconWriter(folder / "beacon", 4), folder / "facts.json", meter, (2, 3))
    recorder.begin_iteration(1)
    visit = recorder.stage(Stage.FORWARD)

    def enter() -> None:
        visit.__enter__()

    def leave() -> None:
        visit.__exit__(None, None, None)

    def both() -> None:
        with visit:
            pass

    recording = {"hot": timed(both, edges_a_call=2), "cold": timed_cold([enter, leave], others)}
    recorder.alternate = True
    recorder.begin_iteration(2)
    paused = {"hot": timed(both, edges_a_call=2), "cold": timed_cold([enter, leave], others)}
    return {"recording": recording, "paused": paused}


def cuda_parts(others: Others) -> dict[str, Any]:
    """The two calls of torch that an edge may make, and the public one that it does not."""
    import torch

    device = torch.cuda.current_device()
    calls: dict[str, Callable[[], Any]] = {
        "_cuda_memoryStats": lambda: torch._C._cuda_memoryStats(device),
        "_cuda_resetPeakMemoryStats": lambda: torch._C._cuda_resetPeakMemoryStats(device),
        "torch.cuda.memory_stats": torch.cuda.memory_stats,
    }
    return {name: {"hot": timed(call), "cold": timed_cold([call], others)} for name, call in calls.items()}


class Others:
    """Everything else that a process does between two edges, as far as the caches notice."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(EVICTED_BYTES))
        self._document = {f"layer {index}": {"shape": [index, 2.5], "name": "x" * index} for index in range(200)}

    def run(self) -> None:
        half = len(self._memory) // 2
        self._memory[:half] = self._memory[half:]
        text = json.dumps(self._document, indent=1, sort_keys=True)
        words = sorted(re.findall(r"[a-z]+ \d+", text), key=lambda word: word[::-1])
        assert json.loads(text)[words[0]]


def timed(call: Callable[[], Any], edges_a_call: int = 1) -> dict[str, float]:
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - started) / CALLS / edges_a_call * 1e6)
    return {"fastest": round(min(rounds), 2), "median": round(statistics.median(rounds), 2)}


def timed_cold(calls: list[Callable[[], Any]], others: Others) -> dict[str, float]:
    """Each of `calls` after other work, in turn."""
    rounds = []
    for _ in range(COLD_ROUNDS):
        times = []
        for _ in range(COLD_CALLS):
            for call in calls:
                others.run()
                started = time.perf_counter()
                call()
                times.append((time.perf_counter() - started) * 1e6)
        rounds.append(statistics.median(times))
    return {"fastest": round(min(rounds), 2), "median": round(statistics.median(rounds), 2)}


def shared_memory() -> str | None:
    """Where beacons lie, too."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    main()
