"""Writes the database of a release that later schemas must open: `python tests/make_store_fixture.py`.

Run it once for a release whose schema is new, and commit the file; never for a release that is out.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import recorded

from orchestrator.records import layout
from orchestrator.store.collect import collect
from orchestrator.store.database import open_store
from orchestrator.store.plans import PlannedRow, PlanRecord, record_plan
from orchestrator.store.schema import REVISIONS


def main() -> None:
    path = Path(__file__).parent / "data" / f"store-v{int(REVISIONS[-1])}.sqlite"
    if path.exists():
        sys.exit(f"{path} is there: a released database is not written again")
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        layout.make_private_dir(results)
        trials = recorded.demo(results)
        hostile = replace(recorded.batch_trial("d" * 20, ["moe"]), name="it's [bold]\x1b[31m")
        running = replace(recorded.attempt_record(hostile), ended_at=None)
        recorded.write_attempt(results, hostile, [], record=running)
        rows = [PlannedRow(one.trial, one.name, one.trainer, one.world_size, one.config) for one in trials]
        refused = PlannedRow("e" * 20, "mlpp", "mcore_cpu", 2, recorded.config(["mlpp"]), "rejected", ["no label"])
        with open_store(Path(folder) / "store.sqlite", write=True) as store:
            record_plan(store, results, PlanRecord("demo", recorded.START, [*rows, refused], {"target_gb": 40}))
            collect(store, results)
        connection = sqlite3.connect(Path(folder) / "store.sqlite")
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute(f"VACUUM INTO '{path}'")
        connection.close()
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
