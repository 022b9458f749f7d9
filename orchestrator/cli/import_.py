"""`import`: published tables, a results folder, or another database, into this one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.storage import add_results_flag, locate
from orchestrator.config.errors import EnvironmentFailure, UsageError

if TYPE_CHECKING:
    from orchestrator.store.database import Store

_ABOUT = """\
Takes in evidence from elsewhere: `published` (the guide's tables; name some, or get all), the JSON file of another
published table, a results folder, or another database by file or URL. The same import again changes nothing."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("import", description=_ABOUT)
    parser.add_argument("source", metavar="published|TABLE.json|DIR|DATABASE", help="what to take in")
    parser.add_argument(
        "tables", nargs="*", default=[], metavar="TABLE", help="with published: which tables (default: all)"
    )
    add_results_flag(parser)


def run(args: argparse.Namespace) -> int:
    from orchestrator.store.database import open_store

    if args.tables and args.source != "published":
        raise UsageError("Tables are named after `published` only: import published moonlight-16b.")
    take = _taker(args.source, args.tables)
    with open_store(locate(args).url, write=True) as store:
        result = {"database": store.where, "source": args.source, **take(store)}
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        from orchestrator.report.text import plain

        counts = ", ".join(f"{count} {name}" for name, count in result.items() if isinstance(count, int))
        print(f"{plain(args.source)}: {counts}, into {plain(result['database'])}")
        for problem in result.get("left_out", ()):
            print(f"warning: {plain(problem)}", file=sys.stderr)
        for study in result.get("studies", ()):
            print(f"  `compare {plain(study)}` shows it")
    return 0


def _taker(source: str, tables: list[str]) -> Any:
    """What takes this source in, once the database is open. Whatever is wrong with the source is said before that."""
    if source == "published":
        return _published(tables)
    if "://" in source:
        return lambda store: _database(store, source)
    path = Path(source).expanduser()
    if path.is_dir():
        return lambda store: _folder(store, path)
    if path.suffix == ".json" and path.is_file():
        return _table_file(path)
    if path.is_file():
        return lambda store: _database(store, str(path))
    raise UsageError(
        f"There is no {source!r} to import: name `published`, a table's JSON file, a results folder, or a database."
    )


def _published(tables: list[str]) -> Any:
    from orchestrator.analysis.published_tables import published_rows, published_tables
    from orchestrator.config.nearest import did_you_mean

    for table in tables:
        if table not in published_tables():
            raise UsageError(f"There is no published table {table!r}{did_you_mean(table, published_tables())}")
    rows = [row for table in tables or published_tables() for row in published_rows(table)]
    return lambda store: _rows(store, rows)


def _table_file(path: Path) -> Any:
    from orchestrator.analysis.published_tables import rows_of_table
    from orchestrator.records.jsonfile import FormatError, read_json

    try:
        rows = rows_of_table(read_json(path), str(path))
    except FormatError as error:
        raise UsageError(f"{error}.") from error
    return lambda store: _rows(store, rows)


def _rows(store: Store, rows: list[Any]) -> dict[str, Any]:
    from orchestrator.analysis.publish import import_rows

    new, known = import_rows(store, rows)
    return {"new": new, "known": known, "studies": sorted({row.study for row in rows})}


def _folder(store: Store, path: Path) -> dict[str, Any]:
    from orchestrator.analysis.rows import ORIGIN_IMPORTED
    from orchestrator.records import layout
    from orchestrator.store.collect import collect

    if not (layout.runs_dir(path).is_dir() or (path / "batches").is_dir()):
        raise UsageError(f"{path} is no results folder: it has neither runs/ nor batches/.")
    try:
        found = collect(store, path, origin=ORIGIN_IMPORTED)
    except layout.UntrustedFolderError as error:
        raise EnvironmentFailure(f"{error}.") from error
    return {"new": found.new, "updated": found.updated, "problems": len(found.problems)}


def _database(store: Store, source: str) -> dict[str, Any]:
    from orchestrator.store.database import open_store
    from orchestrator.store.merge import merge

    with open_store(source) as other:
        merged = merge(store, other)
    counts = {"new": merged.new, "updated": merged.updated, "known": merged.known}
    return {**counts, "studies": merged.studies, "left_out": [f"{one.path}: {one.message}" for one in merged.problems]}
