"""How long the command line takes to answer, and to expand a grid, beside Hydra composing each point. One JSON line."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from orchestrator.config.compose import composing
from orchestrator.config.multirun import expand

REPEATS = 11
POINTS = 200


def seconds_of(*command: str) -> list[float]:
    """Wall seconds of a process, several times."""
    taken = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - begun)
    return taken


def summary(taken: list[float]) -> dict[str, float]:
    return {
        "median_s": round(statistics.median(taken), 4),
        "min_s": round(min(taken), 4),
        "max_s": round(max(taken), 4),
    }


def main() -> None:
    begun = time.perf_counter()
    with composing() as composer:
        found = expand([f"training.seed=range(0,{POINTS})"], composer, multirun=True)
    ours = time.perf_counter() - begun
    begun = time.perf_counter()
    with composing() as composer:
        for number in range(POINTS):
            composer._composed([f"training.seed={number}"], with_hydra=False)
    hydras = time.perf_counter() - begun
    figures = {
        "benchmark": "command_line",
        "help": summary(seconds_of("-m", "orchestrator", "-h")),
        "bare_python": summary(seconds_of("-c", "pass")),
        "goal_help_s": 0.25,
        "grid_points": len(found),
        "expand_s": round(ours, 3),
        "hydra_composing_each_s": round(hydras, 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
