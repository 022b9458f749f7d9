"""Which database and results folders a verb works on, and collecting before it answers."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config.errors import EnvironmentFailure, OrchestratorError, UsageError
from orchestrator.records import layout

if TYPE_CHECKING:
    from orchestrator.store.collect import Collected
    from orchestrator.store.database import Store

DATABASE_VARIABLE = "ORCHESTRATOR_DB"
RESULTS = "results"
_COLLECTED = ("runs", "batches", "plans")
_NEIGHBOURS = 3


@dataclass(frozen=True)
class Place:
    """What the command line and the environment say: a database, and perhaps a results folder."""

    url: str
    results_dir: Path | None


@dataclass
class Answering:
    """An open database with what collecting before it brought, and what a user should know of both."""

    store: Store
    collected: list[Collected] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    results_dir: Path | None = None


def add_results_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", metavar="DIR", help=f"the results folder (default: {RESULTS}, or the one of the database)"
    )


def locate(given: argparse.Namespace) -> Place:
    """The database of --db, else of ORCHESTRATOR_DB, else of the results folder."""
    from orchestrator.store.database import default_url, parse_url

    results = getattr(given, "results", None)
    url = given.db or os.environ.get(DATABASE_VARIABLE)
    if not url:
        folder = Path(results or RESULTS)
        return Place(default_url(storable(folder.absolute())), folder)
    if results is not None:
        storable(Path(results).absolute())
        return Place(url, Path(results))
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        beside = Path(parsed.database).expanduser().absolute().parent
        if layout.runs_dir(beside).is_dir() or (beside / "batches").is_dir():
            return Place(url, beside)
    return Place(url, Path(RESULTS) if Path(RESULTS).is_dir() else None)


def storable(folder: Path) -> Path:
    """The same folder, whose name records and the database can hold.

    Raises:
        UsageError: its name is not UTF-8.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        shown = str(folder).encode("utf-8", "backslashreplace").decode()
        raise UsageError(
            f"The results folder {shown} has a name that is not UTF-8, so no record could name it: rename it, or set "
            "another; with LC_ALL=C, set PYTHONUTF8=1."
        ) from None
    return folder


def answer(given: argparse.Namespace) -> Answering:
    """Open the database to be read, after collecting what this user's ranks have written.

    Where it cannot be written (another's database, another process writes), it is read as it is, and a note says so.

    Raises:
        StoreMissing: there is neither a database nor anything to collect.
        EnvironmentFailure, UsageError: it cannot be opened.
    """
    from orchestrator.store.database import open_store
    from orchestrator.store.failures import StoreMissing

    place = locate(given)
    notes = _elsewhere(place)
    collected: list[Collected] = []
    if _may_write(place):
        try:
            with open_store(place.url, write=True) as store:
                notes += store.notes
                collected = collect_all(store, place)
        except layout.UntrustedFolderError as error:
            notes.append(f"nothing was collected: {error}")
        except EnvironmentFailure as error:
            if not _readable(place):
                raise
            notes.append(f"nothing was collected: {error}")
    try:
        store = open_store(place.url)
    except StoreMissing as error:
        raise StoreMissing(" ".join([str(error), *(f"{note}." for note in notes)])) from error
    return Answering(store, collected, notes, place.results_dir)


def _elsewhere(place: Place) -> list[str]:
    """Where nothing has run in the results folder: folders in it that have a database of their own, as the demo's."""
    folder = place.results_dir
    if folder is None or layout.runs_dir(folder).is_dir() or not folder.is_dir():
        return []
    found = sorted(str(path.parent) for path in folder.glob("*/store.sqlite"))
    return [f"{one} has a database of its own: --results {one} asks it" for one in found[:_NEIGHBOURS]]


def collect_all(store: Store, place: Place) -> list[Collected]:
    """Collect the results folder, and every other one that batches in the database name and this user owns.

    Attempts whose driver was killed, or whose job ended, are ended first, so that nothing seems to run for ever.
    """
    from orchestrator.store.collect import collect
    from orchestrator.store.overview import folder_of, results_dirs, running, unsettled

    here = place.results_dir
    with store.reading() as connection:
        folders = [Path(folder) for folder in results_dirs(connection, here)]
    if place.results_dir is not None:
        folders.insert(0, place.results_dir.absolute())
    collected = []
    for folder in dict.fromkeys(folders):
        if folder == folders[0] or _is_own(folder):
            collected.append(collect(store, folder))
    with store.reading() as connection:
        going = {
            folder_of(str(Path(one.run_dir).parents[2] / "batches" / one.batch), here)
            if one.batch
            else Path(one.run_dir).parents[2]
            for one in running(connection)
        }
        going |= {folder_of(folder, here) for folder in unsettled(connection)}
    for folder in sorted(going):
        if _is_own(folder) and _settle(folder):
            collected.append(collect(store, folder))
    return collected


def _settle(results_dir: Path) -> bool:
    from orchestrator.dispatch.handover import settle

    return settle(results_dir)


def _may_write(place: Place) -> bool:
    """Whether collecting is this process's to do: the database is its user's own, or new and not to stay empty."""
    from orchestrator.store.database import parse_url

    parsed = parse_url(place.url)
    if parsed.get_backend_name() != "sqlite":
        return True
    path = Path(parsed.database or "").expanduser()
    if path.exists():
        return _is_own(path) and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if not path.absolute().parent.is_dir():  # mistyped, rather than asked for: a verb that only asks makes no folder
        return False
    return place.results_dir is not None and _is_own(place.results_dir) and _has_something(place.results_dir)


def _has_something(results_dir: Path) -> bool:
    """Whether a results folder has anything to collect: a verb that only asks leaves no empty database behind."""
    return any(any(folder.iterdir()) for name in _COLLECTED if (folder := results_dir / name).is_dir())


def _readable(place: Place) -> bool:
    from orchestrator.store.database import open_store

    try:
        open_store(place.url).close()
    except OrchestratorError:
        return False
    return True


def _is_own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False
