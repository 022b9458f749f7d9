"""What sharing an allocation saves: the idle gap between two trials of one job, and node-seconds a trial, against one
allocation a trial. On a cluster that is up (`slurm/testbed.sh start`), with trainers that do nothing."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from orchestrator.dispatch.attempt import attempt_dirs, rank_records
from orchestrator.dispatch.batch import Ask
from orchestrator.dispatch.handover import hand_over, settle
from orchestrator.dispatch.slurm.record import OPEN, Submission, read_submission
from orchestrator.dispatch.submit import batch_dirs
from orchestrator.plan.candidate import Candidate, trial_id
from orchestrator.records.rank import RankRecord

TRIALS = 6
_TRAINER = """
def train(spec, recorder, rank, world_size, local_rank):
    recorder.optimizer_state_exists()
    recorder.begin_iteration(1)
    recorder.end_iteration(1.0, 1.0)
    recorder.measured()
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="slurm-trials-") as folder:
        here = Path(folder)
        (here / "idle_trainer.py").write_text(_TRAINER)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        shared = run(here / "shared", {})
        each = run(here / "each", {"trials_per_job": 1})
        gaps = idle_gaps(here / "shared")
    result = {
        "benchmark": "slurm_trials",
        "trials": TRIALS,
        "idle_gap_seconds": {"median": round(statistics.median(gaps), 2), "all": [round(gap, 2) for gap in gaps]},
        "goal_seconds": 2.0,
        "node_seconds_a_trial": {"sharing": round(shared, 1), "one_allocation_each": round(each, 1)},
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))


def run(results: Path, cluster: dict[str, Any]) -> float:
    """Node-seconds that Slurm accounts a trial that was asked for, controls and all."""
    asks = []
    for number in range(TRIALS):
        request = {
            "recompute_granularity": "selective",
            "recompute_modules": [f"m{number}"],
            "parallelism": {"world_size": 4},
            "training": {"train_iters": 1, "steady_window": [1, 1]},
            "trainer": {"name": "idle_trainer:train"},
            "cluster": {"kind": "slurm", "gpus_per_node": 2, "gpu_option": "none", "time": 10, **cluster},
        }
        candidate = Candidate(str(number), request)
        asks.append(Ask(trial_id(candidate), candidate))
    hand_over(asks, asks[0].candidate.request, "benchmark", results)
    while True:
        settle(results)
        found = [one for folder in batch_dirs(results) if (one := read_submission(folder)) is not None]
        if all(one.state not in OPEN for one in found):
            return sum(node_seconds(one) for one in found) / TRIALS
        time.sleep(1.0)


def node_seconds(submission: Submission) -> int:
    done = subprocess.run(
        ["sacct", "-XnP", "-j", str(submission.job_id), "-o", "ElapsedRaw,NNodes"],
        capture_output=True,
        text=True,
        check=True,
    )
    elapsed, nodes = done.stdout.split()[0].split("|")
    return int(elapsed) * int(nodes)


def idle_gaps(results: Path) -> list[float]:
    """From the last rank's end of one trial to the first rank's supervisor of the next."""
    runs: list[list[RankRecord]] = []
    for trial in (results / "runs").iterdir():
        runs += [list(rank_records(folder).values()) for folder in attempt_dirs(results, trial.name)]
    runs.sort(key=lambda ranks: ranks[0].started_at)
    ends = [max(record.ended_at or 0.0 for record in ranks) for ranks in runs]
    starts = [min(record.started_at for record in ranks) for ranks in runs]
    return [start - end for end, start in zip(ends[:-1], starts[1:], strict=True)]


if __name__ == "__main__":
    sys.exit(main())
