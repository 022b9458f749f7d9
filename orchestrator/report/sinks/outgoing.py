"""What a tracker is told of one finished run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.analysis.candidates import candidate_of
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, Row
from orchestrator.report.text import plain
from orchestrator.select.match import flatten
from orchestrator.vocabulary import is_result

PROGRAM = "recompute-orchestrator"


@dataclass(frozen=True)
class Outgoing:
    """One run. Sizes are bytes and times milliseconds, as the metrics' names say."""

    id: str
    """The same whenever it is sent: letters, digits and dashes."""
    name: str
    study: str
    tags: Mapping[str, str]
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    losses: Mapping[int, float] = field(default_factory=dict)
    """By iteration."""


class Sink(Protocol):
    """A tracker."""

    def send(self, run: Outgoing) -> bool:
        """Whether it was new there.

        Raises:
            Exception: whatever the tracker's library raises.
        """
        ...


def finished(rows: Iterable[Row]) -> list[Outgoing]:
    """The runs that have a result and were measured here."""
    return [
        outgoing(row)
        for row in rows
        if row.origin != ORIGIN_PUBLISHED and row.attempt is not None and row.label is not None and is_result(row.label)
    ]


def outgoing(row: Row) -> Outgoing:
    """A row of a comparison as a tracker's run."""
    started = "" if row.started_at is None else f"-{int(row.started_at)}"
    tags = {
        "label": row.label,
        "cause": row.cause,
        "stage": row.stage,
        "rank": row.rank,
        "study": row.study,
        "trial": row.trial,
        "attempt": row.attempt,
        "batch": row.batch,
        "role": row.role,
        "recompute": candidate_of(row).text,
        "device": row.device_name or row.device_kind,
        "peak_stage": row.peak.stage if row.peak else None,
        "peak_rank": row.peak.rank if row.peak else None,
        "peak_scope": row.peak_scope,
    }
    metrics = {
        "peak_allocated_bytes": row.peak.allocated if row.peak else None,
        "peak_reserved_bytes": row.reserved,
        "step_ms": row.step_ms,
        "step_scatter_ms": row.step_scatter_ms,
        "step_gc_ms": row.step_gc_ms,
        "tflops_per_gpu": row.tflops_per_gpu,
        "last_iteration": row.last_iteration,
        **{f"peak_allocated_bytes.{peak.stage}": peak.allocated for peak in row.peaks if peak.stage is not None},
    }
    return Outgoing(
        id=f"{row.trial}-{row.attempt}{started}",
        name=plain(row.name),
        study=plain(row.study),
        tags={name: plain(value) for name, value in tags.items() if value is not None},
        settings={plain(path): plain(value) for path, value in flatten(row.requested).items()},
        metrics={name: float(value) for name, value in metrics.items() if value is not None},
        losses=row.losses,
    )
