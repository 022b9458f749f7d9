"""Published evidence: the guide's three tables, row by row. Nothing here was measured by this project."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope, Row, StagePeak
from orchestrator.records.jsonfile import FormatError, decode, read_json
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
    checked = decode(_Table, {**table, "schema": 1}, where)
    for group, name in (("parallelism", "world_size"), ("training", "train_iters")):
        value = (getattr(checked.settings, group, None) or {}).get(name)
        if value is not None and type(value) is not int:
            raise FormatError(f"{where}.settings.{group}.{name}: {value!r} is no whole number")
    for order, entry in enumerate(table["rows"]):
        _check_entry(entry, f"{where}: row {order + 1}", table.get("peak"))
    try:
        return [_row(table, entry, order) for order, entry in enumerate(table["rows"])]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: a row cannot be read ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class _Peak:
    """What the table's peaks are."""

    scope: PeakScope
    rank: int | None = None


@dataclass(frozen=True)
class _Settings:
    model: dict[str, Any] | None = None
    parallelism: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    gpu: str | None = None


@dataclass(frozen=True)
class _Table:
    """The fields of a table that are read, with their types."""

    table: str
    title: str | None = None
    settings: _Settings | None = None
    revisions: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    steady_window: tuple[int, int] | None = None
    peak: _Peak | None = None
    notes: list[str] | None = None


@dataclass(frozen=True)
class _Entry:
    """The fields of a row that are read, with their types."""

    modules: list[str] | None = None
    recompute_unknown: bool | None = None
    name: str | None = None
    label: str | None = None
    outcome: str | None = None
    failure: str | None = None
    rank: int | None = None
    last_iteration: int | None = None
    peak_gb: float | None = None
    step_ms: float | None = None
    tflops_per_gpu: float | None = None


def _check_entry(entry: Any, where: str, peak: Any) -> None:
    """Refuse a row whose fields are not what they should be, so that nothing of it is stored.

    Raises:
        FormatError: with the row and the field.
    """
    decode(_Entry, entry, where)
    if entry.get("modules") is None and not entry.get("recompute_unknown"):
        raise FormatError(f"{where}: it has no modules; `recompute_unknown` says that its source does not give them")
    if entry.get("peak_gb") is not None and peak is None:
        raise FormatError(f"{where}: it has a peak, and the table's `peak` does not say its scope")
    for name in ("peak_gb", "step_ms", "tflops_per_gpu"):
        value = entry.get(name)
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
            raise FormatError(f"{where}.{name}: {value} is no figure")


def _row(table: Mapping[str, Any], entry: Mapping[str, Any], order: int) -> Row:
    settings = table.get("settings") or {}
    modules = None if entry.get("recompute_unknown") else [str(module) for module in entry["modules"]]
    name = entry.get("name") or ("[]" if modules == [] else ", ".join(modules or []))
    window = table.get("steady_window")
    training = settings.get("training") or {}
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
            "model": settings.get("model") or {},
            "parallelism": settings.get("parallelism") or {},
            "precision": {"name": settings.get("precision")},
            "training": training,
            "revisions": table.get("revisions") or {},
        },
        study=study,
        origin=ORIGIN_PUBLISHED,
        device_kind="cuda",
        device_name=settings.get("gpu"),
        world_size=(settings.get("parallelism") or {}).get("world_size"),
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
            **(table.get("source") or {}),
            "revisions": table.get("revisions") or {},
            "settings": settings,
            "peak": table.get("peak") or {},
            "numerical_sanity": table.get("numerical_sanity"),
            "notes": table.get("notes") or [],
            "entry": dict(entry),
        },
    )


def _identity(table: str, order: int, name: str) -> str:
    return hashlib.sha256(f"published\0{table}\0{order}\0{name}".encode()).hexdigest()[:20]


def _size(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * GB)
