"""`report` on a grid of 200 trials on 16 ranks, against starting Python with what it imports: medians of runs in turns.

    python benchmarks/report.py [--trials 200] [--ranks 16] [--runs 5]

Prints one JSON line: seconds of the whole command (the claim: under 5) and the page's size (under 2 MB).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import recorded

from orchestrator.store.collect import collect
from orchestrator.store.database import default_url, open_store

_LABELS = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
_IMPORTS = [sys.executable, "-c", "import sqlalchemy, jinja2, vl_convert, hydra"]
_TARGET_MB = 1.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results, page = Path(folder) / "results", Path(folder) / "report.html"
        fill(results, given.trials, given.ranks, given.iterations)
        url = default_url(results)
        report = [sys.executable, "-m", "orchestrator", "report", "grid", "--db", url, "-o", str(page)]
        report += ["--target-gb", str(_TARGET_MB / 1000)]
        _seconds(report)
        timed = [(_seconds(_IMPORTS), _seconds(report)) for _ in range(given.runs)]
        size = page.stat().st_size
    imports, whole = zip(*timed, strict=True)
    print(
        json.dumps(
            {
                "benchmark": "report",
                "trials": given.trials,
                "ranks": given.ranks,
                "iterations": given.iterations,
                "runs": given.runs,
                "imports_s": round(statistics.median(one for one, _ in imports), 3),
                "report_s": round(statistics.median(one for one, _ in whole), 3),
                "report_cpu_s": round(statistics.median(one for _, one in whole), 3),
                "noise_s": round(statistics.stdev(one for one, _ in whole), 3) if given.runs > 1 else None,
                "page_bytes": size,
                "cpus": os.cpu_count(),
                "load": round(os.getloadavg()[0], 1),
            }
        )
    )


def fill(results: Path, trials: int, ranks: int, iterations: int) -> None:
    """A study `grid`: lists of labels times parallel layouts, every seventh of which runs out of memory."""
    layouts = 5
    lists = [list(chosen) for size in range(len(_LABELS)) for chosen in combinations(_LABELS, size)]
    members = []
    for number in range(trials):
        labels, layout = lists[number // layouts], number % layouts
        made = recorded.batch_trial(f"{number:020x}", labels, world_size=ranks)
        parallelism = {"tp": 1 << layout, "pp": 1, "world_size": ranks}
        members.append(replace(made, config=made.config | {"parallelism": parallelism}, name=f"{labels} {layout}"))
    recorded.write_batch(results, recorded.batch(results, members, name="grid", study="grid"))
    for number, member in enumerate(members):
        layout, labels = number % layouts, member.config["recompute_modules"]
        base = 1_100_000 + 200_000 * layout - 30_000 * len(labels)
        made = [
            recorded.rank_record(
                member.trial,
                rank,
                world_size=ranks,
                iterations=iterations,
                base=base,
                ms=90.0 + 9 * len(labels) + 5 * layout,
                every_stage=True,
            )
            for rank in range(ranks)
        ]
        model = {"num_layers": 4, "tensor_model_parallel_size": 1 << layout}
        settings = {key: value for key, value in member.config.items() if key.startswith("recompute")}
        made[0] = replace(made[0], effective={"model": model | settings})
        if number % 7 == 3:
            made[1] = replace(recorded.out_of_memory(made[1]), effective=None)
        record = replace(recorded.attempt_record(member), batch="grid", study="grid")
        recorded.write_attempt(results, member, made, record=record)
    with open_store(default_url(results), write=True) as store:
        collect(store, results)
        time.sleep(2.1)  # past which a folder's time tells it from a later change
        collect(store, results)


def _seconds(command: list[str]) -> tuple[float, float]:
    """Wall time and processor time of a command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
