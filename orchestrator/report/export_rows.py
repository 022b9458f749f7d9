"""A comparison as flat records, one a run, for spreadsheets and data frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.comparison import Comparison, Group, Line
from orchestrator.analysis.rows import Row


@dataclass(frozen=True)
class Field:
    """A column: its name, with the unit in it, and the type of its values beside None."""

    name: str
    kind: type


FIELDS = (
    *(Field(name, str) for name in ("study", "match_key", "name", "modules", "trial", "attempt", "role")),
    *(Field(name, str) for name in ("recompute_granularity", "recompute_modules", "recompute_method")),
    Field("recompute_num_layers", str),
    Field("repeat", int),
    Field("control", bool),
    *(Field(name, str) for name in ("origin", "label", "outcome", "cause", "stage")),
    *(Field(name, int) for name in ("rank", "last_iteration", "world_size", "ranks_reported")),
    *(Field(name, str) for name in ("device_kind", "device_name", "peak_scope", "peak_stage")),
    *(Field(name, int) for name in ("peak_rank", "peak_allocated_bytes", "peak_reserved_bytes", "forward_peak_bytes")),
    *(Field(name, float) for name in ("step_ms", "step_scatter_ms", "step_gc_ms", "tflops_per_gpu")),
    *(Field(name, float) for name in ("peak_delta", "peak_noise_band", "time_delta", "time_noise_band")),
    Field("time_delta_measurable", bool),
    Field("other_nodes", bool),
    Field("loss_difference", float),
    Field("batch", str),
    Field("started_at_unix_seconds", float),
    Field("evidence", str),
)


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """One record a run, with its candidate's deltas (fractions of the control); absent is None.

    `recompute_modules` is spelt as on a command line: `[]` is the empty list, and None an unset one.
    """
    return [_record(group, line, row) for group in comparison.groups for line in group.lines for row in line.runs]


def _record(group: Group, line: Line, row: Row) -> dict[str, Any]:
    recompute, peak, time = line.candidate.recompute, line.peak_delta, line.time_delta
    forward = line.forward_peak if len(line.runs) == 1 else None
    values = {
        "study": row.study,
        "match_key": group.digest,
        "name": row.name,
        "modules": line.text,
        "trial": row.trial,
        "attempt": row.attempt,
        "role": row.role,
        "recompute_granularity": recompute.granularity,
        "recompute_modules": None if recompute.modules is None else f"[{','.join(recompute.modules)}]",
        "recompute_method": recompute.method,
        "recompute_num_layers": None if recompute.num_layers is None else str(recompute.num_layers),
        "repeat": row.repeat,
        "control": line.is_control,
        "origin": row.origin,
        "label": row.label,
        "outcome": row.outcome_text,
        "cause": row.cause,
        "stage": None if row.stage is None else str(row.stage),
        "rank": row.rank,
        "last_iteration": row.last_iteration,
        "world_size": row.world_size,
        "ranks_reported": row.ranks_reported,
        "device_kind": row.device_kind,
        "device_name": row.device_name,
        "peak_scope": None if row.peak_scope is None else str(row.peak_scope),
        "peak_stage": None if row.peak is None or row.peak.stage is None else str(row.peak.stage),
        "peak_rank": row.peak.rank if row.peak else None,
        "peak_allocated_bytes": row.peak.allocated if row.peak else None,
        "peak_reserved_bytes": row.reserved,
        "forward_peak_bytes": forward,
        "step_ms": row.step_ms,
        "step_scatter_ms": row.step_scatter_ms,
        "step_gc_ms": row.step_gc_ms,
        "tflops_per_gpu": row.tflops_per_gpu,
        "peak_delta": peak.fraction if peak else None,
        "peak_noise_band": peak.band.half_width if peak and peak.band else None,
        "time_delta": time.fraction if time else None,
        "time_noise_band": time.band.half_width if time and time.band else None,
        "time_delta_measurable": time.measurable if time else None,
        "other_nodes": time.other_nodes if time else None,
        "loss_difference": line.loss_difference,
        "batch": row.batch,
        "started_at_unix_seconds": row.started_at,
        "evidence": " | ".join(row.evidence) or None,
    }
    return {field.name: values[field.name] for field in FIELDS}
