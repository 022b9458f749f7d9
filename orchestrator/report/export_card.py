"""The `measured_results` of a Bridge skill card, as YAML.

Layout: `skills/nemo-mbridge-perf-activation-recompute/card.yaml` in NVIDIA-NeMo/Megatron-Bridge, 2026-08.
"""

from __future__ import annotations

import importlib
from typing import Any

from orchestrator.analysis.comparison import Comparison, Delta, Group, Line
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope, Row
from orchestrator.report.compare import footnotes
from orchestrator.report.text import plain
from orchestrator.select.match import flatten
from orchestrator.vocabulary import PASS
from orchestrator.vocabulary.units import GB

_PARALLELISM = (
    ("TP", ("tensor_model_parallel_size", "tp")),
    ("PP", ("pipeline_model_parallel_size", "pp")),
    ("VPP", ("virtual_pipeline_model_parallel_size", "vpp")),
    ("CP", ("context_parallel_size", "cp")),
    ("EP", ("expert_model_parallel_size", "ep")),
    ("ETP", ("expert_tensor_parallel_size", "etp")),
    ("DP", ("data_parallel_size", "dp")),
)
_SCOPES = {
    PeakScope.ALL_RANKS: "largest allocated peak of any rank, from set-up to the end of the window",
    PeakScope.REPORTED_MAX: "maximum that a log reported",
    PeakScope.ONE_RANK: "peak of one rank",
}


def card_yaml(comparison: Comparison) -> str:
    """A YAML document with one entry of `measured_results` a match key."""
    yaml = importlib.import_module("yaml")
    document = {"measured_results": [_entry(group) for group in comparison.groups]}
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=100, default_flow_style=None)
    return text


def _entry(group: Group) -> dict[str, Any]:
    row = next((line.decided for line in group.lines if line.decided.effective is not None), group.first_row)
    fields = _by_name(row)
    window = (
        f"mean time and throughput over iterations {row.steady_window[0]}-{row.steady_window[1]}"
        if (row.steady_window)
        else None
    )
    scopes = sorted({_SCOPES[line.peak_scope] for line in group.lines if line.peak_scope is not None})
    entry = {
        "model": _text(_model(row)),
        "task": "pretrain_short_run" if row.origin != ORIGIN_PUBLISHED else _text(row.source["settings"].get("task")),
        "revisions": _revisions(row),
        "parallelism": "_".join(f"{name}{value}" for name, names in _PARALLELISM if (value := _first(fields, names))),
        "gpus": row.world_size if row.device_kind != "cpu" else None,
        "gpu": _text(row.device_name) if row.device_kind != "cpu" else None,
        "device": "cpu" if row.device_kind == "cpu" else None,
        "precision": _text(_precision(row, fields)),
        "seq_length": _first(fields, ("seq_length",)),
        "mbs": _first(fields, ("micro_batch_size",)),
        "gbs": _first(fields, ("global_batch_size",)),
        "steps": row.train_iters,
        "measurement": "; ".join(text for text in (*scopes, window) if text) or None,
        "numerical_sanity": _sanity(group),
        "match_key": group.digest,
        "comparison_limitations": " ".join(footnotes(group)) or None,
        "experiments": [_experiment(line) for line in group.lines],
    }
    return {name: value for name, value in entry.items() if value not in (None, {}, "")}


def _experiment(line: Line) -> dict[str, Any]:
    recompute, passed = line.candidate.recompute, line.label == PASS
    peak = line.peak.allocated if line.peak else None
    experiment = {
        "name": "empty_control" if line.is_control else _text(line.text).replace(", ", "_plus_").replace(" ", "_"),
        "recompute_granularity": recompute.granularity if recompute.granularity != "selective" else None,
        "recompute_modules": [_text(label) for label in recompute.modules] if recompute.modules is not None else None,
        "recompute_method": recompute.method,
        "recompute_num_layers": recompute.num_layers,
        "peak_mem_gb": None if peak is None else round(peak / GB, 3),
        "peak_mem_vs_control_pct": _percent(line.peak_delta),
        "step_time_ms": None if line.step_ms is None else round(line.step_ms, 2),
        "step_time_vs_control_pct": _percent(line.time_delta),
        "step_time_noise_band_pct": _band(line.time_delta),
        "tflops_per_gpu": None if line.tflops_per_gpu is None else round(line.tflops_per_gpu, 2),
        "repeats": len(line.runs) if len(line.runs) > 1 else None,
        "repeats_passed": line.passed if len(line.runs) > 1 else None,
        "status": None if passed else _text(line.decided.outcome_text or line.label or "not recorded"),
    }
    return {name: value for name, value in experiment.items() if value is not None}


def _sanity(group: Group) -> str | None:
    first = group.first_row
    if first.origin == ORIGIN_PUBLISHED:
        said = first.source.get("numerical_sanity")
        return _text(said) if said else None
    if not any(line.passed for line in group.lines):
        return None
    return "passing rows: all losses finite, no skipped and no NaN iteration, optimizer state present on every rank"


def _by_name(row: Row) -> dict[str, Any]:
    flat = {**flatten(row.requested), **flatten(row.effective or {})}
    found: dict[str, Any] = {}
    for path in sorted(flat, key=lambda path: (-path.count("."), path)):
        if flat[path] is not None:
            found[path.rpartition(".")[2]] = flat[path]
    return found


def _model(row: Row) -> Any:
    model = row.requested.get("model") or {}
    trainer = row.requested.get("trainer") or {}
    return trainer.get("recipe") or model.get("name") or "unnamed"


def _revisions(row: Row) -> dict[str, str]:
    if row.origin == ORIGIN_PUBLISHED:
        return {str(name): _text(value) for name, value in (row.source.get("revisions") or {}).items()}
    found = {}
    for name, package in (("bridge", "megatron_bridge"), ("megatron_core", "megatron_core")):
        entry = row.software.get(package)
        revision = (entry.get("commit") or entry.get("version")) if isinstance(entry, dict) else None
        if revision:
            dirty = " (dirty)" if isinstance(entry, dict) and entry.get("dirty") else ""
            found[name] = _text(f"{revision}{dirty}")
    return found


def _precision(row: Row, fields: dict[str, Any]) -> Any:
    if row.origin == ORIGIN_PUBLISHED:
        return row.source["settings"].get("precision")
    kind = next((name.upper() for name in ("bf16", "fp16") if fields.get(name) is True), None)
    return kind or fields.get("params_dtype")


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _percent(delta: Delta | None) -> float | None:
    return None if delta is None else round(delta.fraction * 100, 2)


def _band(delta: Delta | None) -> float | None:
    return None if delta is None or delta.band is None else round(delta.band.half_width * 100, 2)


def _text(value: Any) -> str:
    return plain(value)
