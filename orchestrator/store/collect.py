"""Brings what ranks and drivers wrote into the database. Safe to repeat, to interrupt and to run twice at once."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from sqlalchemy import Connection, bindparam, select, update

from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode, read_json
from orchestrator.records.spec import Batch
from orchestrator.store.database import Store
from orchestrator.store.die_with_parent import die_with_parent
from orchestrator.store.models import Source
from orchestrator.store.plans import PlanRecord, write_plan
from orchestrator.store.prepare import PreparedAttempt, Problem, prepare
from orchestrator.store.scan import Seen, batch_files, changed_attempts, changed_files, driver_files, plan_files
from orchestrator.store.write import insert_missing, pieces, table_of, write_attempts, write_batch, write_driver_state

_RANKS_A_TRANSACTION = 400
_RANKS_FOR_WORKERS = 400
"""Fewer records are read by this process: starting workers takes longer than reading them."""

Prepare = Callable[[Iterable[str]], Iterator[PreparedAttempt | Problem]]


@dataclass
class Collected:
    """What one collection found. `problems` are of this collection; the database keeps them until they are gone."""

    new: int = 0
    updated: int = 0
    ranks: int = 0
    batches: int = 0
    plans: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.new or self.updated or self.batches or self.plans)


def collect(store: Store, results_dir: Path, *, workers: int | None = None) -> Collected:
    """Collect what has changed below `results_dir` since the last time.

    Only files of this user, in folders that nobody else can write, are read. What cannot be read is reported and
    does not hold up the rest. `workers` is the number of processes that read records (default: one per core, and
    none for a few).

    Raises:
        UntrustedFolderError: the results folder itself belongs to, or can be written by, somebody else.
        EnvironmentFailure: the database is locked, full, ...
    """
    started = time.perf_counter()
    collected = Collected()
    results_dir = results_dir.absolute()
    if not results_dir.is_dir():
        return collected
    layout.check_private(results_dir)
    if layout.runs_dir(results_dir).is_dir():
        layout.check_private(layout.runs_dir(results_dir))
    known = _known_sources(store, str(results_dir))
    user = _user()
    _collect_files(store, results_dir, known, user, collected)
    changed: list[Seen] = []
    settled: list[Seen] = []
    for seen, differs in changed_attempts(results_dir, known, time.time()):
        (changed if differs else settled).append(seen)
    _collect_attempts(store, changed, user, collected, workers)
    if settled:
        with store.writing() as connection:
            _settle(connection, settled)
    collected.seconds = time.perf_counter() - started
    return collected


def open_problems(store: Store) -> list[Problem]:
    """The files that could not be collected, as they are now."""
    with store.reading() as connection:
        query = select(Source.path, Source.problem).where(Source.problem.is_not(None)).order_by(Source.path)
        return [Problem(row.path, row.problem) for row in connection.execute(query)]


def _known_sources(store: Store, results_dir: str) -> dict[str, Seen]:
    query = select(Source.path, Source.stamp, Source.signature).where(
        Source.path.startswith(results_dir + os.sep, autoescape=True)
    )
    with store.reading() as connection:
        return {row.path: Seen(row.path, row.stamp, row.signature) for row in connection.execute(query)}


def _collect_files(
    store: Store, results_dir: Path, known: dict[str, Seen], user: str | None, collected: Collected
) -> None:
    """Batches and plans, each in a transaction of its own."""
    for seen in changed_files(plan_files(results_dir), known):
        with _one_file(store, seen, collected) as connection:
            write_plan(connection, decode(PlanRecord, read_json(Path(seen.path)), seen.path))
            collected.plans += 1
    for seen in changed_files(batch_files(results_dir), known):
        with _one_file(store, seen, collected) as connection:
            batch = decode(Batch, read_json(Path(seen.path)), seen.path)
            write_batch(connection, batch, str(Path(seen.path).parent), user)
            collected.batches += 1
    for seen in changed_files(driver_files(results_dir), known):
        with _one_file(store, seen, collected) as connection:
            state = read_json(Path(seen.path))
            if not isinstance(state, dict):
                raise FormatError(f"{seen.path}: expected an object")
            write_driver_state(connection, Path(seen.path).parent.name, state)


@contextmanager
def _one_file(store: Store, seen: Seen, collected: Collected) -> Iterator[Connection]:
    problem: str | None = None
    try:
        with store.writing() as connection:
            layout.check_private(Path(seen.path).parent)
            layout.check_private(Path(seen.path))
            yield connection
            _remember(connection, [(seen, None)])
            return
    except (OSError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
    collected.problems.append(Problem(seen.path, problem))
    with store.writing() as connection:
        _remember(connection, [(seen, problem)])


def _collect_attempts(
    store: Store, changed: list[Seen], user: str | None, collected: Collected, workers: int | None
) -> None:
    pending: list[tuple[Seen, PreparedAttempt | Problem]] = []
    ranks = 0
    with _preparing(changed, workers) as prepare_all:
        for seen, one in zip(changed, prepare_all(seen.path for seen in changed), strict=True):
            pending.append((seen, one))
            ranks += len(one.ranks) if isinstance(one, PreparedAttempt) else 0
            if ranks >= _RANKS_A_TRANSACTION:
                _write(store, pending, user, collected)
                pending, ranks = [], 0
    if pending:
        _write(store, pending, user, collected)


def _write(
    store: Store, pending: list[tuple[Seen, PreparedAttempt | Problem]], user: str | None, collected: Collected
) -> None:
    """One transaction: attempts, and that their files were read."""
    attempts = [one for _, one in pending if isinstance(one, PreparedAttempt)]
    sources: list[tuple[Seen, str | None]] = []
    for seen, one in pending:
        problems = [one] if isinstance(one, Problem) else one.problems
        collected.problems += problems
        sources.append((seen, "; ".join(problem.message for problem in problems) or None))
    with store.writing() as connection:
        new, updated = write_attempts(connection, attempts, user)
        _remember(connection, sources)
    collected.new += new
    collected.updated += updated
    collected.ranks += sum(len(one.ranks) for one in attempts)


def _settle(connection: Connection, settled: list[Seen]) -> None:
    """Note the times of folders that can be told from later changes now."""
    table = table_of(Source)
    statement = update(table).where(table.c.path == bindparam("key")).values(stamp=bindparam("new"))
    connection.execute(statement, [{"key": seen.path, "new": seen.stamp} for seen in settled])


def _remember(connection: Connection, sources: list[tuple[Seen, str | None]]) -> None:
    table = table_of(Source)
    rows = [
        {"path": seen.path, "stamp": seen.stamp, "signature": seen.signature, "problem": problem}
        for seen, problem in sources
    ]
    for some in pieces([row["path"] for row in rows]):
        connection.execute(table.delete().where(table.c.path.in_(some)))
    insert_missing(connection, Source, rows)


@contextmanager
def _preparing(changed: list[Seen], workers: int | None) -> Iterator[Prepare]:
    """Where attempts are read: here, or by worker processes where there are enough to be worth it."""
    count = min(os.cpu_count() or 1, 4) if workers is None else workers
    if workers is None and (count < 2 or _estimate(changed) < _RANKS_FOR_WORKERS):
        count = 0
    if count == 0:
        yield lambda folders: map(prepare, folders)
        return
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        yield lambda folders: pool.map(prepare, folders, chunksize=8)


def _estimate(changed: list[Seen]) -> int:
    """About how many rank records are to be read, from the first few attempts."""
    first = changed[:8]
    if not first:
        return 0
    found = sum(len(layout.rank_files(Path(seen.path))) for seen in first)
    return found * len(changed) // len(first)


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
