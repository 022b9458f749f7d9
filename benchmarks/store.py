"""A large database: how fast records come in, how fast it answers, how large it is.

    python benchmarks/store.py [--trials 5000] [--ranks 16] [--iterations 20] [--grow 20000] [--per-study 50]

Trials have real-shaped records: every stage, per-stage rows in every iteration. Prints one JSON line; `grown` holds
the same figures at the size given with --grow, of a database that grew to it. A verb's `_s` is that of the whole
process; `_beyond_imports_s` that of a process which has imported everything that the verb uses. 5,000 trials are
3.2 GB of files and a database of 0.6 GB in a temporary folder (--folder), 20,000 four times that.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import recorded

from orchestrator.records import layout
from orchestrator.store.collect import collect
from orchestrator.store.database import default_url, open_store

_LABELS = 16
"""Of which each candidate of a study recomputes other ones."""
_PATTERNS = 40
"""Different contents of records; trials take turns, since making 80,000 of them would take longer than reading them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--grow", type=int, default=0, help="then grow to this many trials, and measure again")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--per-study", type=int, default=50, help="candidates of a study, all of one match key")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        results = Path(folder) / "results"
        patterns = _patterns(given.ranks, given.iterations)
        answer = {"benchmark": "store", **_measure(results, patterns, range(given.trials), given)}
        if given.grow:
            answer["grown"] = _measure(results, patterns, range(given.trials, given.grow), given)
    machine = {"cpus": os.cpu_count(), "orjson": importlib.util.find_spec("orjson") is not None}
    print(json.dumps({**answer, "iterations": given.iterations, "per_study": given.per_study, **machine}))


def _measure(results: Path, patterns: list[list[str]], added: range, given: argparse.Namespace) -> dict[str, Any]:
    size = _make(results, patterns, added, given.iterations, given.per_study)
    before = _cpu_seconds()
    with open_store(default_url(results), write=True) as store:
        found = collect(store, results)
    cpu = _cpu_seconds() - before
    time.sleep(2.1)
    database = ["--db", str(results / "store.sqlite")]
    verbs = {
        "status": ["status", "--results", str(results)],
        "status_one_study": ["status", "study0", "--results", str(results)],
        "show": ["show", f"{0:020x}", "--results", str(results)],
        "compare": ["compare", "study0", *database],
        "recommend": ["recommend", "study0", "--target-gb", "500", *database],
        "diagnose": ["diagnose", "study0", *database],
        "report": ["report", "study0", "--output", str(results / "report.html"), *database],
    }
    whole = {f"{name}_s": _seconds_of([sys.executable, "-m", "orchestrator", *words]) for name, words in verbs.items()}
    beyond = {f"{name}_beyond_imports_s": _beyond_imports(words) for name, words in verbs.items()}
    return {
        "trials": added.stop,
        "rank_records": found.ranks,
        "record_kb": round(size / max(found.ranks, 1) / 1e3, 1),
        "collect_s": round(found.seconds, 2),
        "collect_cpu_s": round(cpu, 2),
        "records_per_s": round(found.ranks / found.seconds),
        "problems": len(found.problems),
        "database_mb": round(_size(results) / 1e6, 1),
        "database_kb_a_rank": round(_size(results) / (added.stop * len(patterns[0])) / 1e3, 2),
        "collect_again_s": round(_collect_again(results), 3),
        **whole,
        **beyond,
    }


def _patterns(ranks: int, iterations: int) -> list[list[str]]:
    """Records as text, with a mark in place of the trial."""
    made = []
    for seed in range(_PATTERNS):
        records = [
            recorded.rank_record(
                "@TRIAL@",
                rank,
                world_size=ranks,
                iterations=iterations,
                base=40_000_000_000 + seed * 10_000_000,
                ms=1800.0 + seed,
                every_stage=True,
                seed=seed,
            )
            for rank in range(ranks)
        ]
        if seed % 8 == 7:
            records[-1] = recorded.out_of_memory(records[-1], iteration=2)
        made.append([json.dumps(_as_file(record), indent=1) for record in records])
    return made


def _as_file(record: Any) -> Any:
    return recorded.encode(record)


def _make(results: Path, patterns: list[list[str]], numbers: range, iterations: int, per_study: int) -> int:
    """Write the attempts; bytes of rank records."""
    size = 0
    window = (iterations // 2 + 1, iterations)
    for first in range(numbers.start, numbers.stop, per_study):
        name = f"study{first // per_study}"
        members = [
            replace(
                recorded.batch_trial(
                    f"{number:020x}",
                    [f"label{bit}" for bit in range(_LABELS) if (number - first) >> bit & 1],
                    role="control-first" if number == first else "trial",
                    world_size=len(patterns[0]),
                ),
                steady_window=window,
                train_iters=iterations,
            )
            for number in range(first, min(first + per_study, numbers.stop))
        ]
        batch_file = recorded.write_batch(results, recorded.batch(results, members, name=name, study=name))
        state = {"state": "finished", "host": "node0", "heartbeat": 1750000100.0}
        batch_file.with_name("driver.json").write_text(json.dumps(state), encoding="utf-8")
        for number, member in enumerate(members, first):
            record = replace(recorded.attempt_record(member), batch=name, study=name)
            run_dir = recorded.write_attempt(results, member, [], record=record)
            for rank, text in enumerate(patterns[number % len(patterns)]):
                path = layout.rank_file(run_dir, rank)
                path.write_text(text.replace("@TRIAL@", member.trial), encoding="utf-8")
                path.chmod(0o600)
                size += len(text)
    return size


def _cpu_seconds() -> float:
    """Of this process and its workers: what collecting takes also where others use the machine."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _collect_again(results: Path) -> float:
    with open_store(default_url(results), write=True) as store:
        collect(store, results)
        return collect(store, results).seconds


def _size(results: Path) -> int:
    return sum(path.stat().st_size for path in results.glob("store.sqlite*"))


_MODULES = """
import contextlib, io, json, sys
from orchestrator.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(sys.argv[1:]) == 0
print(json.dumps([name for name, module in sys.modules.items() if name != "__main__" and module is not None]))
"""
_TIMED = """
import contextlib, importlib, io, json, sys, time
for name in json.loads(sys.stdin.read()):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
from orchestrator.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    started = time.perf_counter()
    assert main(sys.argv[1:]) == 0
    seconds = time.perf_counter() - started
print(seconds)
"""


def _beyond_imports(words: list[str]) -> float:
    """Seconds that a verb takes in a new process that has imported what it uses: the best of three."""
    command = [sys.executable, "-W", "ignore", "-c"]
    modules = subprocess.run([*command, _MODULES, *words], capture_output=True, text=True, check=True).stdout
    runs = [
        subprocess.run([*command, _TIMED, *words], input=modules, capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    return round(min(float(run.stdout) for run in runs), 3)


def _seconds_of(command: list[str]) -> float | None:
    """The best of three; None where the command failed."""
    best: float | None = None
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            return None
        seconds = time.perf_counter() - started
        best = seconds if best is None else min(best, seconds)
    return None if best is None else round(best, 3)


if __name__ == "__main__":
    main()
