"""`status` on many trials, against importing SQLAlchemy and rich alone: medians of runs taken in turns.

    python benchmarks/status.py [--trials 1000] [--runs 9]

Prints one JSON line: seconds; `beyond_imports_s` is the claim (0.3 s for 1,000 trials).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import recorded

from orchestrator.store.collect import collect
from orchestrator.store.database import default_url, open_store

_IMPORTS = [sys.executable, "-c", "import sqlalchemy, rich.console, rich.table, rich.text"]
_TRIALS_A_STUDY = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        _fill(results, given.trials)
        status = [sys.executable, "-m", "orchestrator", "status", "--results", str(results)]
        _seconds(status)
        timed = [(_seconds(_IMPORTS), _seconds(status)) for _ in range(given.runs)]
    imports, whole = zip(*timed, strict=True)
    print(
        json.dumps(
            {
                "benchmark": "status",
                "trials": given.trials,
                "runs": given.runs,
                "imports_s": round(statistics.median(imports), 3),
                "status_s": round(statistics.median(whole), 3),
                "beyond_imports_s": round(statistics.median(w - i for i, w in timed), 3),
                "noise_s": round(max(statistics.stdev(imports), statistics.stdev(whole)), 3),
                "cpus": os.cpu_count(),
            }
        )
    )


def _fill(results: Path, trials: int) -> None:
    for first in range(0, trials, _TRIALS_A_STUDY):
        name = f"study{first // _TRIALS_A_STUDY}"
        members = [
            recorded.batch_trial(f"{number:020x}", ["mlp"] if number % 2 else [])
            for number in range(first, min(first + _TRIALS_A_STUDY, trials))
        ]
        recorded.write_batch(results, recorded.batch(results, members, name=name, study=name))
        for member in members:
            record = replace(recorded.attempt_record(member), batch=name, study=name)
            recorded.write_attempt(results, member, record=record)
    with open_store(default_url(results), write=True) as store:
        collect(store, results)
        time.sleep(2.1)  # past which a folder's time tells it from a later change
        collect(store, results)


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
