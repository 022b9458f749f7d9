"""Reads changed files and writes them to the database, a few hundred ranks a transaction."""

from __future__ import annotations

import gc
import getpass
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, update
from sqlalchemy.exc import DataError, IntegrityError

from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode, read_json
from orchestrator.records.spec import Batch
from orchestrator.store.database import Store
from orchestrator.store.die_with_parent import die_with_parent
from orchestrator.store.models import Source
from orchestrator.store.plans import PlanRecord, write_plan
from orchestrator.store.prepare import PreparedAttempt, prepare
from orchestrator.store.problem import Problem
from orchestrator.store.scan import Seen
from orchestrator.store.write import (
    insert_missing,
    pieces,
    table_of,
    write_attempts,
    write_batch,
    write_driver_state,
)

if TYPE_CHECKING:
    from orchestrator.store.collect import Collected

_RANKS_A_TRANSACTION = 400
_RANKS_FOR_WORKERS = 400
"""Fewer records are read by this process: starting workers takes longer than reading them."""

Prepare = Callable[[Iterable[str]], Iterator[PreparedAttempt | Problem]]
Read = tuple[Seen, PreparedAttempt | Problem]


class Intake:
    """One collection: what it reads goes to `store`, what it found to `collected`."""

    def __init__(self, store: Store, collected: Collected, origin: str) -> None:
        self._store = store
        self._collected = collected
        self._origin = origin
        self._user = _user()

    def plans(self, changed: Iterable[Seen]) -> None:
        for seen in changed:
            with self._one_file(seen) as connection:
                write_plan(connection, decode(PlanRecord, read_json(Path(seen.path)), seen.path))
                self._collected.plans += 1

    def batches(self, changed: Iterable[Seen]) -> None:
        for seen in changed:
            with self._one_file(seen) as connection:
                batch = decode(Batch, read_json(Path(seen.path)), seen.path)
                write_batch(connection, batch, str(Path(seen.path).parent), self._user, self._origin)
                self._collected.batches += 1

    def drivers(self, changed: Iterable[Seen]) -> None:
        for seen in changed:
            with self._one_file(seen) as connection:
                state = read_json(Path(seen.path))
                if not isinstance(state, dict):
                    raise FormatError(f"{seen.path}: expected an object")
                write_driver_state(connection, Path(seen.path).parent.name, state)

    def attempts(self, changed: list[Seen], workers: int | None) -> None:
        """All changed attempts; a transaction holds whole attempts, and that their files were read."""
        pending: list[Read] = []
        ranks = 0
        with _without_collector(), _preparing(changed, workers) as prepare_all:
            for seen, one in zip(changed, prepare_all(seen.path for seen in changed), strict=True):
                pending.append((seen, one))
                ranks += len(one.ranks) if isinstance(one, PreparedAttempt) else 1
                if ranks >= _RANKS_A_TRANSACTION:
                    self._write(pending)
                    pending, ranks = [], 0
        if pending:
            self._write(pending)

    def settle(self, settled: list[Seen]) -> None:
        """Note the times of folders that can be told from later changes now."""
        if settled:
            table = table_of(Source)
            statement = update(table).where(table.c.path == bindparam("key")).values(stamp=bindparam("new"))
            with self._store.writing() as connection:
                connection.execute(statement, [{"key": seen.path, "new": seen.stamp} for seen in settled])

    def _write(self, pending: list[Read]) -> None:
        """Write attempts together; where one holds what no column can, each on its own, and that one is a problem."""
        try:
            self._write_together(pending)
        except (OverflowError, UnicodeError, DataError, IntegrityError) as error:
            if len(pending) > 1:
                for one in pending:
                    self._write([one])
                return
            said = error.orig if isinstance(error, (DataError, IntegrityError)) else error
            problem = Problem(pending[0][0].path, f"it cannot be stored: {' '.join(str(said).split())}")
            if isinstance(error, IntegrityError):  # may be another writer's doing: tried again next time
                self._collected.problems.append(problem)
            else:
                self._write_together([(pending[0][0], problem)])

    def _write_together(self, pending: list[Read]) -> None:
        attempts = [one for _, one in pending if isinstance(one, PreparedAttempt)]
        problems = [[one] if isinstance(one, Problem) else one.problems for _, one in pending]
        sources = [
            (seen, "; ".join(problem.message for problem in found) or None)
            for (seen, _), found in zip(pending, problems, strict=True)
        ]
        with self._store.writing() as connection:
            new, updated = write_attempts(connection, attempts, self._user, self._origin)
            _remember(connection, sources)
        self._collected.problems += chain.from_iterable(problems)
        self._collected.new += new
        self._collected.updated += updated
        self._collected.ranks += sum(len(one.ranks) for one in attempts)

    @contextmanager
    def _one_file(self, seen: Seen) -> Iterator[Connection]:
        """A transaction for one file; one that cannot be read is a problem and changes nothing."""
        try:
            with self._store.writing() as connection:
                layout.check_private(Path(seen.path).parent)
                layout.check_private(Path(seen.path))
                yield connection
                _remember(connection, [(seen, None)])
                return
        except (OverflowError, DataError) as error:  # a number that no column can hold
            said = error.orig if isinstance(error, DataError) else error
            problem = f"{seen.path}: {' '.join(str(said).split())}"
        except (OSError, ValueError, RecursionError) as error:
            problem = " ".join(str(error).split())
        self._collected.problems.append(Problem(seen.path, problem))
        with self._store.writing() as connection:
            _remember(connection, [(seen, problem)])


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
def _without_collector() -> Iterator[None]:
    """Records are trees without cycles: looking for cycles among millions of their parts takes a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _preparing(changed: list[Seen], workers: int | None) -> Iterator[Prepare]:
    """Where attempts are read: here, or by worker processes where there are enough to be worth it."""
    count = min(os.cpu_count() or 1, 4) if workers is None else workers
    if workers is None and (count < 2 or _estimate(changed) < _RANKS_FOR_WORKERS):
        count = 0
    if count == 0 or threading.active_count() > 1:
        yield lambda folders: map(prepare, folders)
        return
    # Forked: nothing is imported again, and this process has no other thread whose lock a child could inherit.
    with ProcessPoolExecutor(count, get_context("fork"), initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        try:
            yield lambda folders: pool.map(prepare, folders, chunksize=8)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # an interrupt, or a full disk: what was written stays
            raise


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
