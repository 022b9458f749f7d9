"""Planning a grid of 2,000 candidates, beside Hydra's own multirun of the same grid with a job that does nothing.

    python benchmarks/plan.py [--hydra-points 100]

The command is a user's (`-m … dry_run=true --json`), once with nothing known and nothing cached, once with a result for
every valid trial. Memory is the largest that the process and the validator that it starts had at one instant, sampled
every 20 ms: `pss_mb` counts a page that several processes map once (shared among all processes of the machine, so that
other programs with the same libraries make it smaller), `rss_mb` counts it for each of them. `own_mb` and
`validator_mb` are the kernel's own high-water marks of each process, wherever they fell.

CPU time per further candidate is the difference between grids of 500, 2,000 and 8,000 candidates. Hydra's multirun
takes minutes for the whole grid, so by default it runs some of its points and the total is that, scaled up;
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
SMALL, WHOLE, LARGE = 500, 2000, 8000
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
        large = planned(Path(folder) / "large", LARGE)
        hydra = hydra_multirun(Path(folder) / "hydra", given.hydra_points)
    print(
        json.dumps(
            {
                "benchmark": "plan",
                "goal": {"seconds": 10, "megabytes": 400},
                "whole": whole,
                "small": small,
                "large": large,
                "cpu_ms_per_further_candidate": {
                    which: {"to_2000": further(small, whole, which), "to_8000": further(whole, large, which)}
                    for which in ("first", "second")
                },
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


def further(less: dict[str, Any], more: dict[str, Any], which: str) -> float:
    """CPU time of each candidate that the larger grid has more: what start-up takes is not in it."""
    seconds = more[which]["cpu_seconds"] - less[which]["cpu_seconds"]
    return round(seconds * 1e3 / (more["candidates"] - less["candidates"]), 2)


def grid(points: int) -> list[str]:
    """Axes with that many points: the whole, a quarter of it with one parallelism, or four of it with four seeds."""
    if points == SMALL:
        return ["parallelism=two_stages" if axis.startswith("parallelism") else axis for axis in AXES]
    return [*AXES, *(["training.seed=1,2,3,4"] if points == LARGE else [])]


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
    """The memory of a process and of those that it starts, sampled until it ends."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._pss = self._rss = 0
        self._high: dict[int, int] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def peaks(self) -> dict[str, int]:
        """In MB: all of them at one instant, and each by itself."""
        self._thread.join(timeout=5)
        children = [high for pid, high in self._high.items() if pid != self._process.pid]
        found = {
            "pss_mb": self._pss,
            "rss_mb": self._rss,
            "own_mb": self._high.get(self._process.pid, 0),
            "validator_mb": max(children, default=0),
        }
        return {name: round(value / 1e6) for name, value in found.items()}

    def _watch(self) -> None:
        while True:
            try:
                tree = [self._process, *self._process.children(recursive=True)]
                together = [self._sample(process.pid) for process in tree]
            except (psutil.Error, OSError):  # a process that has just ended: the child, or all
                if not psutil.pid_exists(self._process.pid):
                    return
                continue
            if not together[0][0]:
                return
            self._pss = max(self._pss, sum(pss for pss, _ in together))
            self._rss = max(self._rss, sum(rss for _, rss in together))
            time.sleep(0.02)

    def _sample(self, pid: int) -> tuple[int, int]:
        """Pss and Rss in bytes; of a process that has just ended, 0."""
        rollup = _kilobytes(Path(f"/proc/{pid}/smaps_rollup"))
        high = _kilobytes(Path(f"/proc/{pid}/status")).get("VmHWM", 0)
        self._high[pid] = max(self._high.get(pid, 0), high)
        return rollup.get("Pss", 0), rollup.get("Rss", 0)


def _kilobytes(path: Path) -> dict[str, int]:
    """The lines `Name:  123 kB` of a file of /proc, in bytes."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


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
