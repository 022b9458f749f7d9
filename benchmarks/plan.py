"""Planning a grid of 2,000 candidates, beside Hydra's own multirun of the same grid with a job that does nothing.

    python benchmarks/plan.py [--hydra-points 100]

The command is a user's (`-m … dry_run=true --json`), once with nothing known and nothing cached, once with a result for
every valid trial. Memory is the largest of the process and of the validator that it starts, and both together. Hydra's
multirun takes minutes for the whole grid, so by default it runs some of its points and the total is that, scaled up;
`--hydra-points 2000` runs it whole. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
SMALL, WHOLE = 500, 2000
MODULES = "[],[core_attn],[mla_up_proj],[mlp],[moe],[shared_experts],[layernorm],[core_attn,mlp],[mlp,moe],null"
AXES = (
    f"recompute_modules={MODULES}",
    "parallelism=single,two_stages,two_experts,two_replicas",
    "training.micro_batch_size=1,2,4,8,3",
    "training.global_batch_size=8,16,32,64,48",
    "precision=fp32,bf16",
)
_HYDRA_JOB = """
import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

node = OmegaConf.create({group: {} for group in GROUPS})
for group in node:
    node[group]._set_flag("struct", False)
ConfigStore.instance().store(name="orchestrator", node=node)

@hydra.main(version_base="1.3", config_path=CONF, config_name="config")
def job(config):
    pass

job()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hydra-points", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        small = planned(Path(folder) / "small", SMALL)
        whole = planned(Path(folder) / "whole", WHOLE)
        hydra = hydra_multirun(Path(folder) / "hydra", given.hydra_points)
    print(
        json.dumps(
            {
                "benchmark": "plan",
                "goal": {"seconds": 10, "megabytes": 400},
                "whole": whole,
                "small": small,
                "hydra_multirun": hydra,
                "times_faster_first": round(hydra["ms_per_candidate"] / whole["first"]["ms_per_candidate"], 1),
                "cores": os.cpu_count(),
                "load": round(os.getloadavg()[0], 2),
            }
        )
    )


def planned(folder: Path, points: int) -> dict[str, Any]:
    """The same plan twice: with nothing known, and with all of it known."""
    folder.mkdir()
    overrides = grid(points)
    first = command(folder, overrides)
    remember(folder, first.pop("plan"))
    second = command(folder, overrides)
    plan = second.pop("plan")
    assert plan["counts"]["new"] == 0, plan["counts"]
    return {"candidates": points, "counts": plan["counts"], "first": first, "second": second}


def grid(points: int) -> list[str]:
    """Axes with that many points: the whole, or a quarter of it with one parallelism."""
    if points == WHOLE:
        return list(AXES)
    return ["parallelism=two_stages" if axis.startswith("parallelism") else axis for axis in AXES]


def command(folder: Path, overrides: list[str]) -> dict[str, Any]:
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    started, spent = time.perf_counter(), cpu_seconds()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "-m", *overrides, "dry_run=true", "--json"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    memory = Memory(process.pid)
    output, _ = process.communicate()
    seconds = time.perf_counter() - started
    plan = json.loads(output)
    count = plan["counts"]["candidates"]
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds() - spent, 2),
        "ms_per_candidate": round(seconds * 1e3 / count, 2),
        **memory.peaks(),
        "plan": plan,
    }


class Memory:
    """The largest resident memory of a process, of the processes that it starts, and of all at one time, in MB."""

    def __init__(self, pid: int) -> None:
        self.own = self.child = self.together = 0
        self._process = psutil.Process(pid)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def peaks(self) -> dict[str, int]:
        self._thread.join(timeout=5)
        found = {"own_mb": self.own, "validator_mb": self.child, "together_mb": self.together}
        return {name: round(value / 1e6) for name, value in found.items()}

    def _watch(self) -> None:
        while self._process.is_running():
            try:
                own = self._process.memory_info().rss
                children = [child.memory_info().rss for child in self._process.children(recursive=True)]
            except psutil.Error:
                return
            if not own:
                return
            self.own, self.child = max(self.own, own), max([self.child, *children])
            self.together = max(self.together, own + sum(children))
            time.sleep(0.02)


def cpu_seconds() -> float:
    """Of all processes that have ended: what a loaded machine took is not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def remember(folder: Path, plan: dict[str, Any]) -> None:
    """Give every trial that would run a result, as `collect` would have written it."""
    from sqlalchemy import insert

    from orchestrator.records.layout import make_private_dir
    from orchestrator.store.database import default_url, open_store
    from orchestrator.store.models import Attempt, Trial
    from orchestrator.store.requested import trial_row

    results = folder / "results"
    make_private_dir(results)
    fresh = [entry for entry in plan["trials"] if entry["status"] == "new"]
    with open_store(default_url(results), write=True) as store, store.writing() as connection:
        rows = [trial_row(entry["trial"], {}, trainer="mcore_cpu", world_size=2) for entry in fresh]
        connection.execute(insert(Trial), rows)
        connection.execute(
            insert(Attempt),
            [
                {
                    "uid": entry["trial"],
                    "trial_id": entry["trial"],
                    "number": "001",
                    "name": entry["name"],
                    "role": "trial",
                    "run_dir": str(results),
                    "state": "ended",
                    "decides": True,
                    "label": "pass",
                    "ranks_recorded": 2,
                }
                for entry in fresh
            ],
        )


def hydra_multirun(folder: Path, points: int) -> dict[str, Any]:
    """Hydra's own sweep over the same axes; the first has as many values as the points asked for need."""
    from orchestrator.config.compose import OPEN_GROUPS

    folder.mkdir()
    program = folder / "job.py"
    text = _HYDRA_JOB.replace("GROUPS", repr(OPEN_GROUPS)).replace("CONF", repr(str(ROOT / "conf")))
    program.write_text(text)
    axes, count = list(AXES), WHOLE
    if points < WHOLE:
        rows = max(1, round(points / 50))
        axes = ["recompute_modules=[]", "parallelism=two_stages", *AXES[2:]]
        axes[0] = f"training.seed=range({rows})"
        count = 50 * rows
    started, spent = time.perf_counter(), cpu_seconds()
    subprocess.run(
        [sys.executable, str(program), "-m", *axes, "hydra.sweep.dir=sweep"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - started
    each = seconds / count
    return {
        "candidates": count,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds() - spent, 2),
        "ms_per_candidate": round(each * 1e3, 1),
        "seconds_for_the_whole_grid": round(each * WHOLE, 1),
        "scaled_up": count != WHOLE,
    }


if __name__ == "__main__":
    main()
