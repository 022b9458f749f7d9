"""200 two-node trials, from the command to all of them being with Slurm, against hydra-submitit-launcher.

    python benchmarks/slurm_submit.py [PYTHON_WITH_HYDRA_SUBMITIT_LAUNCHER]

On a cluster that is up (`slurm/testbed.sh start`). Jobs are held back (`begin`), so that nothing runs meanwhile. Ours
is measured twice: as it is, where trials of one shape share an allocation, and with one allocation a trial.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRIALS = 200
_HYDRA_APP = """
import hydra
@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config):
    pass
main()
"""


def main() -> None:
    other = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="slurm-submit-") as folder:
        here = Path(folder)
        result = {
            "benchmark": "slurm_submit",
            "trials": TRIALS,
            "shared_allocation_seconds": ours(here / "shared", {}),
            "one_allocation_each_seconds": ours(here / "each", {"trials_per_job": 1}),
            "hydra_submitit_launcher_seconds": None if other is None else hydra(here, other),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2),
        }
    print(json.dumps(result))


def ours(results: Path, cluster: dict[str, object]) -> dict[str, float | int]:
    """Seconds of a process that hands the trials over; and its jobs."""
    script = (
        "import sys, json; from pathlib import Path;"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r}); from slurm_submit import submit_all;"
        "submit_all(Path(sys.argv[1]), json.loads(sys.argv[2]))"
    )
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", script, str(results), json.dumps(cluster)], check=True)
    seconds = time.perf_counter() - started
    jobs = waiting()
    cancel()
    return {"seconds": round(seconds, 2), "jobs": jobs}


def submit_all(results: Path, cluster: dict[str, object]) -> None:
    from orchestrator.dispatch.batch import Ask
    from orchestrator.dispatch.handover import hand_over
    from orchestrator.plan.candidate import Candidate, trial_id

    asks = []
    for number in range(TRIALS):
        request = {
            "recompute_granularity": "selective",
            "recompute_modules": ["core_attn"],
            "parallelism": {"world_size": 4},
            "training": {"train_iters": 2, "steady_window": [1, 2], "seed": number},
            "trainer": {"name": "mcore_cpu"},
            "cluster": {
                "kind": "slurm", "gpus_per_node": 2, "gpu_option": "none", "sbatch": {"begin": "now+1hour"}, **cluster,
            },
        }  # fmt: skip
        candidate = Candidate(str(number), request)
        asks.append(Ask(trial_id(candidate), candidate))
    hand_over(asks, asks[0].candidate.request, "benchmark", results)


def hydra(folder: Path, python: str) -> dict[str, float | int]:
    """Seconds until the launcher's command has all its jobs in the queue; it then blocks, and is ended."""
    app = folder / "app.py"
    app.write_text(_HYDRA_APP)
    words = [
        "-m", "hydra/launcher=submitit_slurm", "hydra.launcher.nodes=2", "hydra.launcher.tasks_per_node=2",
        "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=10", "hydra.launcher.mem_gb=null",
        "+hydra.launcher.additional_parameters={begin:now+1hour}", "hydra.launcher.array_parallelism=1000",
        f"hydra.sweep.dir={folder}/sweep", f"+x=range({TRIALS})",
    ]  # fmt: skip
    started = time.perf_counter()
    process = subprocess.Popen([python, str(app), *words], cwd=folder)
    while waiting() < TRIALS and process.poll() is None:
        time.sleep(0.05)
    seconds = time.perf_counter() - started
    found = waiting()
    process.kill()
    process.wait()
    cancel()
    return {"seconds": round(seconds, 2), "jobs": found}


def waiting() -> int:
    """Jobs in the queue, each task of an array counted."""
    done = subprocess.run(["squeue", "--me", "-h", "-r", "-o", "%i"], capture_output=True, text=True, check=True)
    return len(done.stdout.split())


def cancel() -> None:
    subprocess.run(["scancel", "--me"], check=True)
    while waiting():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
