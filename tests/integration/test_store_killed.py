"""A collection or a migration that is killed, or runs twice at once, loses nothing and doubles nothing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import recorded

from orchestrator.records import layout
from orchestrator.store.collect import collect
from orchestrator.store.database import describe, open_store
from orchestrator.store.models import Base

pytestmark = pytest.mark.integration

TRIALS = 60

COLLECT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins by ignoring it
from pathlib import Path
from orchestrator.store import intake, database
from orchestrator.store.collect import collect
intake._RANKS_A_TRANSACTION = 4
write = intake.write_attempts
def slowly(*given):
    found = write(*given)
    print("wrote", flush=True)
    time.sleep(float(sys.argv[4]))  # between the rows and their commit
    return found
intake.write_attempts = slowly
with database.open_store(sys.argv[1], write=True) as store:
    print("open", flush=True)
    collect(store, Path(sys.argv[2]), workers=int(sys.argv[3]))
"""

MIGRATE = """
import sys, time
from orchestrator.store import migrate
made = migrate.create_statements
def slowly():
    print("migrating", flush=True)
    time.sleep(60)
migrate.create_statements = slowly
from orchestrator.store.database import open_store
open_store(sys.argv[1], write=True)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "results"
    layout.make_private_dir(folder)
    trials = [recorded.batch_trial(f"{number:020x}", [f"m{number}"]) for number in range(TRIALS)]
    recorded.write_batch(folder, recorded.batch(folder, trials))
    for trial in trials:
        recorded.write_attempt(folder, trial)
    return folder


def start_collecting(path: Path, results: Path, workers: int, pause: float = 0.02) -> subprocess.Popen[str]:
    """A collection that has its database open. After each of its thirty transactions' rows it says so and waits."""
    process = start(COLLECT, path, results, workers, pause)
    wait_for(process, "open")
    return process


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def contents(path: Path) -> dict[str, list[str]]:
    """What both databases should hold alike: everything but times of collecting and internal numbers."""
    left_out = {"id", "attempt_id", "rank_id", "study_id", "first_seen", "stamp"}
    found: dict[str, list[str]] = {}
    with open_store(path) as store, store.reading() as connection:
        for table in Base.metadata.sorted_tables:
            columns = [column for column in table.columns if column.name not in left_out]
            found[table.name] = sorted(map(repr, connection.execute(table.select().with_only_columns(*columns))))
    return found


@pytest.fixture(scope="module")
def expected(results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    path = tmp_path_factory.mktemp("expected") / "store.sqlite"
    with open_store(path, write=True) as store:
        assert collect(store, results).new == TRIALS
    return contents(path)


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


def test_collection_killed_again_and_again_ends_as_one_that_was_not(
    results: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "store.sqlite"
    rng = random.Random(7)
    kept = []
    for workers in (0, 2, 0):
        process = start_collecting(path, results, workers, pause=0.1)
        for _ in range(rng.randrange(1, 6)):
            wait_for(process, "wrote")
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with open_store(path) as store, store.reading() as connection:
            counts = (
                connection.exec_driver_sql("SELECT COUNT(*) FROM attempts").scalar(),
                connection.exec_driver_sql("SELECT COUNT(*) FROM ranks").scalar(),
                connection.exec_driver_sql("SELECT COUNT(*) FROM sources WHERE path LIKE '%/runs/%'").scalar(),
            )
        assert counts == (counts[0], 2 * counts[0], counts[0])  # whole transactions, or nothing of them
        kept.append(counts[0])
    assert kept == sorted(kept)
    assert kept[0] < TRIALS  # it was not given the time of thirty transactions
    with open_store(path, write=True) as store:
        collect(store, results)
    assert contents(path) == expected


def test_workers_end_with_the_collection_that_is_killed(results: Path, tmp_path: Path) -> None:
    import psutil

    process = start_collecting(tmp_path / "store.sqlite", results, 2)
    deadline = time.monotonic() + 20
    while len(workers := psutil.Process(process.pid).children()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(workers) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    gone, alive = psutil.wait_procs(workers, timeout=5)
    assert (len(gone), alive) == (2, [])


def test_two_collections_at_once_give_what_one_gives(results: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with open_store(path, write=True):
        pass
    both = [start_collecting(path, results, 0) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert contents(path) == expected


def test_migration_that_is_killed_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    process = start(MIGRATE, path)
    wait_for(process, "migrating")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert describe(path)[1] is None
    with open_store(path, write=True) as store, store.reading() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM v_trials").scalar() == 0


def test_readers_are_not_held_up_by_a_collection(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with open_store(path, write=True) as store:
        collect(store, results)
        with store.writing() as connection:
            connection.exec_driver_sql("UPDATE attempts SET label = 'failed:unknown'")
            with open_store(path, busy_seconds=0.1) as reader, reader.reading() as other:
                count = other.exec_driver_sql("SELECT COUNT(*) FROM attempts WHERE label = 'pass'").scalar()
                assert count == TRIALS


def test_interrupted_collection_ends_at_once_and_keeps_what_it_wrote(
    results: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "store.sqlite"
    process = start_collecting(path, results, 2, pause=0.3)
    for _ in range(3):
        wait_for(process, "wrote")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) != 0
    with open_store(path, write=True) as store:
        collect(store, results)
    assert contents(path) == expected
