"""Finding out about 1,000 jobs: reading their submissions and one sacct call. On a cluster that is up
(`slurm/testbed.sh start`), with jobs that are held back."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from orchestrator.dispatch.handover import settle
from orchestrator.dispatch.slurm.record import Submission, write_submission
from orchestrator.dispatch.submit import write_batch
from orchestrator.records.spec import Batch

JOBS, ROUNDS = 1000, 5


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="slurm-status-") as folder:
        results = Path(folder)
        for number in range(JOBS):
            submit(results, f"bench{number:05d}")
        try:
            seconds = [measure(results) for _ in range(ROUNDS)]
        finally:
            subprocess.run(["scancel", "--me"], check=True)
    result = {
        "benchmark": "slurm_status",
        "jobs": JOBS,
        "seconds": {"median": round(statistics.median(seconds), 3), "all": [round(value, 3) for value in seconds]},
        "goal_seconds": 1.0,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))


def submit(results: Path, batch: str) -> None:
    """A job of this batch's name that never starts, and what a command would have kept of it."""
    name = f"orchestrator-{batch}"
    done = subprocess.run(
        ["sbatch", "--parsable", "--begin=now+1hour", f"--job-name={name}", "--output=/dev/null", "--wrap=true"],
        capture_output=True,
        text=True,
        check=True,
    )
    folder = write_batch(Batch(batch, "benchmark", time.time(), str(results), [], {"kind": "slurm"}))
    write_submission(folder, Submission(batch, "submitted", "", name, time.time(), done.stdout.strip()))


def measure(results: Path) -> float:
    started = time.perf_counter()
    settle(results)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
