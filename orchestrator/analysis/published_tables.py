"""Published evidence: the guide's three tables, row by row. Nothing here was measured by this project."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope, Row, StagePeak
from orchestrator.records.jsonfile import FormatError, read_json
from orchestrator.vocabulary.units import GB

FOLDER = Path(__file__).parent / "published"
PUBLISHED_STUDIES = "published/"
"""What the study of every published table is called before its name."""
NEWEST_SCHEMA = 1
UNKNOWN = "unknown"
"""A recompute setting that the source does not give."""


@cache
def published_tables() -> tuple[str, ...]:
    """Names of the tables that come with this release."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def published_rows(table: str) -> list[Row]:
    """The rows of one of our own tables, in its order.

    Raises:
        KeyError: no such table.
    """
    if table not in published_tables():
        raise KeyError(table)
    path = FOLDER / f"{table}.json"
    return rows_of_table(read_json(path), str(path))


def rows_of_table(table: Any, where: str) -> list[Row]:
    """The rows of a table's JSON.

    Raises:
        FormatError: it is not a published table, or a newer release wrote it.
    """
    if (
        not isinstance(table, dict)
        or not isinstance(table.get("table"), str)
        or not isinstance(table.get("rows"), list)
    ):
        raise FormatError(f"{where}: not a published table (an object with `table` and `rows`)")
    if not isinstance(table.get("schema"), int) or table["schema"] > NEWEST_SCHEMA:
        raise FormatError(f"{where}: schema {table.get('schema')} is not one that this release reads (1)")
    try:
        return [_row(table, entry, order) for order, entry in enumerate(table["rows"])]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: a row cannot be read ({type(error).__name__}: {error})") from error


def _row(table: Mapping[str, Any], entry: Mapping[str, Any], order: int) -> Row:
    settings = table.get("settings", {})
    modules = None if entry.get("recompute_unknown") else [str(module) for module in entry["modules"]]
    name = entry.get("name") or ("[]" if modules == [] else ", ".join(modules or []))
    window = table.get("steady_window")
    training = settings.get("training", {})
    peak = _size(entry.get("peak_gb"))
    study = PUBLISHED_STUDIES + table["table"]
    return Row(
        trial=_identity(table["table"], order, name),
        attempt="001",
        name=name,
        requested={
            "recompute_granularity": UNKNOWN if modules is None else "selective",
            "recompute_modules": modules,
            "recompute_method": None,
            "recompute_num_layers": None,
            "model": settings.get("model", {}),
            "parallelism": settings.get("parallelism", {}),
            "precision": {"name": settings.get("precision")},
            "training": training,
            "revisions": table.get("revisions", {}),
        },
        study=study,
        origin=ORIGIN_PUBLISHED,
        device_kind="cuda",
        device_name=settings.get("gpu"),
        world_size=settings.get("parallelism", {}).get("world_size"),
        steady_window=(int(window[0]), int(window[1])) if window else None,
        train_iters=training.get("train_iters"),
        label=entry.get("label"),
        outcome_text=entry.get("outcome"),
        cause="device_oom" if str(entry.get("label", "")).startswith("OOM-") else None,
        rank=entry.get("rank"),
        last_iteration=entry.get("last_iteration"),
        evidence=(entry["failure"],) if entry.get("failure") else (),
        peak_scope=PeakScope(table["peak"]["scope"]) if peak is not None else None,
        peaks=(StagePeak(table["peak"].get("rank"), None, peak),) if peak is not None else (),
        step_ms=entry.get("step_ms"),
        tflops_per_gpu=entry.get("tflops_per_gpu"),
        source={
            "table": table["table"],
            "title": table.get("title"),
            "order": order,
            **table.get("source", {}),
            "revisions": table.get("revisions", {}),
            "settings": settings,
            "peak": table.get("peak", {}),
            "numerical_sanity": table.get("numerical_sanity"),
            "notes": table.get("notes", []),
            "entry": dict(entry),
        },
    )


def _identity(table: str, order: int, name: str) -> str:
    return hashlib.sha256(f"published\0{table}\0{order}\0{name}".encode()).hexdigest()[:20]


def _size(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * GB)
