"""The comparison as a table, as plain lines, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from orchestrator.analysis.comparison import Comparison, Delta, Group, Line, OneLabel
from orchestrator.analysis.noise import BASIS_WINDOW, NoiseBand
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope, StagePeak
from orchestrator.records.jsonfile import encode
from orchestrator.report.table import ABSENT, Column, Table, print_table
from orchestrator.report.text import plain
from orchestrator.vocabulary import Stage
from orchestrator.vocabulary.units import GB, MB

_DELTA_MEMORY, _DELTA_TIME, _DELTA_LOSS = _DELTAS = ("allocated vs []", "time vs []", "loss vs []")
LAST_ITERATION = "last iteration"
NO_EFFECT = "no measurable effect"
_LONGEST_REASON = 200
_LONGEST_VALUE = 60
_MOST_DIFFERENCES = 20
_THIN = 5e-5
"""Half-widths below this would round to 0.00 %."""
_SMALL = GB
"""Peaks below this are shown in MB, the column's header says so."""


def print_comparison(comparison: Comparison, stream: TextIO, *, side_by_side: bool = False) -> None:
    """One table a match key, with what a reader must know below it; `side_by_side` puts all rows into one table."""
    if side_by_side:
        print_table(side_by_side_table(comparison), stream)
        for text in difference_lines(comparison):
            print(f"differs: {text}", file=stream)
        return
    for number, group in enumerate(comparison.groups):
        if number:
            print(file=stream)
        print_table(group_table(group), stream)
        for line in footnotes(group):
            print(line, file=stream)
    if len(comparison.groups) > 1:
        print(file=stream)
        print(
            "Rows of different tables do not match, and have no deltas against each other. They differ in:", file=stream
        )
        for text in difference_lines(comparison):
            print(f"  {text}", file=stream)
        early = [group.digest for group in comparison.groups if group.key.by_request]
        if early and len(early) < len(comparison.groups):
            print(
                f"  {', '.join(early)}: no effective configuration, so they match by what was asked",
                file=stream,
            )


def group_table(group: Group) -> Table:
    """The guide's table for one match key."""
    unit, size = _unit(group.lines)
    rows = tuple(_cells(line, size) for line in group.lines)
    return Table(title=group_title(group), columns=_columns(unit), rows=rows)


def side_by_side_table(comparison: Comparison) -> Table:
    """Rows of all match keys, without deltas, each with its key."""
    lines = [(group.digest, line) for group in comparison.groups for line in group.lines]
    unit, size = _unit([line for _, line in lines])
    columns = (Column("match key"), *(column for column in _columns(unit) if column.header not in _DELTAS))
    deltas = {place for place, column in enumerate(_columns(unit)) if column.header in _DELTAS}
    rows = tuple(
        (digest, *(cell for place, cell in enumerate(_cells(line, size)) if place not in deltas))
        for digest, line in lines
    )
    return Table(title="rows that do not match, side by side: no deltas", columns=columns, rows=rows)


def _columns(unit: str) -> tuple[Column, ...]:
    return (
        Column("modules", wrap=True),
        Column(f"peak allocated ({unit})", right=True),
        Column("rank", right=True, spare=3),
        Column("stage", spare=4),
        Column(f"forward peak ({unit})", right=True, spare=6),
        Column(f"reserved ({unit})", right=True, spare=5),
        Column("step (ms)", right=True),
        Column("TFLOP/s/GPU", right=True, spare=2),
        Column(_DELTA_MEMORY, wrap=True),
        Column(_DELTA_TIME, wrap=True),
        Column("label", wrap=True),
        Column(LAST_ITERATION, right=True, spare=1),
        Column(_DELTA_LOSS, right=True, spare=7),
    )


def footnotes(group: Group) -> list[str]:
    """What the table cannot say in a cell, one sentence a line."""
    notes = []
    first = group.first_row
    if first.device_kind == "cpu":
        notes.append("device: cpu. These rows were measured on a CPU: they are no GPU measurements.")
    if first.origin == ORIGIN_PUBLISHED:
        notes.append(f"published: {plain(first.source.get('document'))}, {plain(first.source.get('section'))}.")
        notes += [f"published: {plain(note)}" for note in first.source.get("notes") or ()]
        notes += [f"{plain(line.text)}: {plain(text)}" for line in group.lines for text in line.decided.evidence]
    elif group.control is None:
        notes.append("There is no control (selective with []) among these rows, so there are no deltas.")
    if group.control is not None and not group.control.passed:
        notes.append(f"The control did not pass ({plain(group.control.label)}), so there are no deltas.")
    notes += _scope_notes(group)
    notes += _repeat_notes(group)
    notes += _noise_notes(group)
    notes += _closing_notes(group)
    controls = {line.text for line in group.lines if line.is_control}
    # A label beside the control alone stands in its own row already.
    beside = [(line, change) for line in group.lines for change in line.one_label if change.base not in controls]
    notes += [_one_label_text(line, change) for line, change in beside]
    for line in group.lines:
        if first.origin != ORIGIN_PUBLISHED and line.decided.evidence and not line.decided.passed:
            notes.append(f"{plain(line.text)}: {_shortened(plain(line.decided.evidence[0]))}")
        notes += [f"{plain(line.text)}: {plain(note)}." for note in line.notes]
        if line.by_request:
            notes.append(f"{plain(line.text)}: has no effective configuration; matched by its request.")
    return notes


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def difference_lines(comparison: Comparison) -> list[str]:
    """Fields in which match keys differ, with each key's value; the first ones, where there are very many."""
    lines = [
        f"{plain(item.field)}: " + " | ".join(_cut(ABSENT if value is None else value) for value in item.values)
        for item in comparison.differences[:_MOST_DIFFERENCES]
    ]
    more = len(comparison.differences) - len(lines)
    return [*lines, f"and {more} more fields: --json lists all"] if more else lines


def _cut(value: object) -> str:
    text = plain(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values: bytes, milliseconds and fractions."""
    return {
        "groups": [
            {
                "match_key": group.digest,
                "origin": group.first_row.origin,
                "device": {"kind": group.first_row.device_kind, "name": group.first_row.device_name},
                "steady_window": encode(group.first_row.steady_window),
                "control": group.control.text if group.control else None,
                "rows": [_line_json(line) for line in group.lines],
                "notes": footnotes(group),
            }
            for group in comparison.groups
        ],
        "differences": [{"field": item.field, "values": encode(item.values)} for item in comparison.differences],
    }


def delta_text(delta: Delta | None) -> str:
    """`+3.85% (±0.40%)`; inside a known noise band the guide's words, and what was seen: `... (+0.20% ±0.40%)`."""
    if delta is None:
        return ABSENT
    said, band = percent(delta.fraction), band_text(delta.band)
    elsewhere = ", other nodes" if delta.other_hosts else ", other job" if delta.other_nodes else ""
    if not delta.measurable:
        return f"{NO_EFFECT} ({f'{said} {band}'.rstrip()}){elsewhere}"
    return f"{said}{f' ({band})' if band else ''}{elsewhere}"


def band_text(band: NoiseBand | None) -> str:
    """`±0.40%`; nothing where no scatter is known, or where the runs were alike to the last byte."""
    if band is None or not band.half_width:
        return ""
    return f"±{band.half_width:.2%}" if band.half_width >= _THIN else f"±{band.half_width * 100:.1g}%"


def percent(fraction: float) -> str:
    """A signed percentage with two decimals; what rounds to nothing has no sign."""
    text = f"{fraction * 100:+.2f}%"
    return "0.00%" if text in ("+0.00%", "-0.00%") else text


def group_title(group: Group) -> str:
    first = group.first_row
    ranks = f"{first.world_size} rank{'s' * (first.world_size > 1)}" if first.world_size else None
    window = f"iterations {first.steady_window[0]} to {first.steady_window[1]}" if first.steady_window else None
    device = " ".join(str(part) for part in (first.device_kind, first.device_name) if part)
    if first.origin == ORIGIN_PUBLISHED:
        parts = [first.source.get("title"), window]
    else:
        parts = [f"match key {group.digest}", f"device: {device or 'unknown'}", ranks, window]
    return plain(" · ".join(str(part) for part in parts if part))


def _cells(line: Line, size: int) -> tuple[str, ...]:
    row = line.decided
    control = "control" if line.is_control else None
    return (
        plain(line.text) + (" (control)" if line.is_control else ""),
        _sized(line.peak.allocated if line.peak else None, size),
        ABSENT if line.peak is None or line.peak.rank is None else str(line.peak.rank),
        ABSENT if line.peak is None or line.peak.stage is None else str(line.peak.stage),
        _sized(line.forward_peak, size),
        _sized(line.reserved, size),
        ABSENT if line.step_ms is None else f"{line.step_ms:.2f}",
        _throughput(line),
        control or delta_text(line.peak_delta),
        control or delta_text(line.time_delta),
        _label(line),
        ABSENT if row.last_iteration is None else str(row.last_iteration),
        ABSENT if line.loss_difference is None else f"{line.loss_difference:.1e}",
    )


def _throughput(line: Line) -> str:
    if line.tflops_per_gpu is None:
        return ABSENT
    entry = line.decided.source.get("entry") or {}
    about = "~" if "tflops_per_gpu" in entry.get("approximate", ()) else ""
    return f"{about}{line.tflops_per_gpu:.2f}"


def _label(line: Line) -> str:
    row = line.decided
    text = plain(line.label or row.outcome_text or "no outcome")
    if row.outcome_text and line.label and not row.passed:
        text += f" ({plain(row.outcome_text)})"
    if len(line.runs) > 1:
        text += f" ({line.passed} of {len(line.runs)} passed)"
    if not row.passed and row.stage not in (None, Stage.UNKNOWN) and row.origin != ORIGIN_PUBLISHED:
        where = f"{row.stage}" if row.rank is None else f"{row.stage}, rank {row.rank}"
        text += f" [{where}]"
    return text


def _scope_notes(group: Group) -> list[str]:
    notes = []
    for scope, text in (
        (PeakScope.REPORTED_MAX, "a maximum that a log reported; which ranks it covers is not known"),
        (PeakScope.ONE_RANK, "not of every rank, so the hot one may be missing"),
    ):
        lines = [line.text for line in group.lines if line.peak_scope is scope]
        if lines:
            notes.append(f"peaks of {'; '.join(plain(text) for text in lines)} are {text}.")
    return notes


def _repeat_notes(group: Group) -> list[str]:
    several = [f"{plain(line.text)} ({line.passed} runs)" for line in group.lines if line.passed > 1]
    if not several:
        return []
    return [
        f"several runs: the largest peak and the median step time of {'; '.join(several)}. A delta is the median of "
        "the runs' own, each against the mean of its job's controls."
    ]


def _noise_notes(group: Group) -> list[str]:
    bands = [line.time_delta.band for line in group.lines if line.time_delta and line.time_delta.band]
    notes = [_band_note(bands)] if bands else []
    drifts = [band.drift for band in bands if band.drift is not None and not band.passes]
    scattered = max((band for band in bands if band.passes), key=lambda band: band.drift or 0.0, default=None)
    if scattered is not None:
        notes.append(
            f"control scatter: {scattered.passes} passes of the control, in any job, lay up to "
            f"{scattered.drift or 0.0:.2%} apart in step time."
        )
    if drifts:
        notes.append(f"control drift: a job's first and last control lay up to {max(drifts):.2%} apart in step time.")
    return notes


def _closing_notes(group: Group) -> list[str]:
    """Jobs whose closing control left no result, so that nobody knows their drift."""
    return [
        f"the control that was to close a job ({plain(row.batch or '-')}) has no result: "
        f"{plain(row.evidence[0] if row.evidence else row.outcome_text or row.label or 'no outcome')}. How far step "
        "times drifted within that job is not known."
        for row in group.lost_closings
    ]


def _band_note(bands: Sequence[NoiseBand]) -> str:
    """What the noise band of this table is computed from."""
    window = any(band.basis == BASIS_WINDOW for band in bands)
    parts = ["two standard errors of the repeats' deltas"] if any(band.basis != BASIS_WINDOW for band in bands) else []
    parts += ["the standard deviation of a single run's own window"] if window else []
    parts += ["that of the control's window"] if any(band.control for band in bands) else []
    parts += ["the control drift"] if any(band.drift is not None and not band.passes for band in bands) else []
    parts += ["the control scatter"] if any(band.passes for band in bands) else []
    said = f"the root of the summed squares of {' and '.join(parts)}" if len(parts) > 1 else parts[0]
    garbage = " Added to it: by how much their garbage collection differs." if any(one.garbage for one in bands) else ""
    shares = ", each a share of its own mean, times the row's time over the control's" if window else ""
    more = " Repeats would tell more." if window else ""
    return f"noise band (the ± beside a time): {said}{shares}.{garbage}{more}"


def _one_label_text(line: Line, change: OneLabel) -> str:
    known = [(name, delta) for name, delta in (("peak", change.peak), ("time", change.time)) if delta is not None]
    said = (
        ", ".join(f"{name} {delta_text(delta)}" for name, delta in known) or "no figures, since one of them has no pass"
    )
    return f"adding {plain(change.label)} to {plain(change.base)}: {said}"


def _line_json(line: Line) -> dict[str, Any]:
    row = line.decided
    return {
        "modules": line.text,
        "recompute": encode(line.candidate.recompute),
        "control": line.is_control,
        "trials": [
            {"trial": run.trial, "attempt": run.attempt, "role": run.role, "label": run.label} for run in line.runs
        ],
        "passed": line.passed,
        "repeats": len(line.runs),
        "label": line.label,
        "outcome": row.outcome_text,
        "cause": row.cause,
        "stage": encode(row.stage),
        "rank": row.rank,
        "last_iteration": row.last_iteration,
        "peak_scope": encode(line.peak_scope),
        "peak_allocated": line.peak.allocated if line.peak else None,
        "peak_rank": line.peak.rank if line.peak else None,
        "peak_stage": encode(line.peak.stage) if line.peak else None,
        "peak_reserved": line.reserved,
        "forward_peak_allocated": line.forward_peak,
        "step_ms": line.step_ms,
        "tflops_per_gpu": line.tflops_per_gpu,
        "peak_delta": _delta_json(line.peak_delta),
        "time_delta": _delta_json(line.time_delta),
        "loss_difference": line.loss_difference,
        "one_label": [
            {
                "base": change.base,
                "label": change.label,
                "peak_delta": _delta_json(change.peak),
                "time_delta": _delta_json(change.time),
            }
            for change in line.one_label
        ],
        "matched_by_request": line.by_request,
        "notes": list(line.notes),
    }


def _delta_json(delta: Delta | None) -> dict[str, Any] | None:
    if delta is None:
        return None
    return {
        "fraction": delta.fraction,
        "measurable": delta.measurable,
        "other_nodes": delta.other_nodes,
        "other_hosts": delta.other_hosts,
        "noise_band": _band_json(delta.band),
    }


def _band_json(band: NoiseBand | None) -> dict[str, Any] | None:
    return None if band is None else dict(encode(band))


def _unit(lines: Sequence[Line]) -> tuple[str, int]:
    largest = max((peak.allocated or 0 for line in lines if (peak := _peak(line))), default=0)
    return ("GB", GB) if not largest or largest >= _SMALL else ("MB", MB)


def _peak(line: Line) -> StagePeak | None:
    return line.peak


def _sized(size: int | None, unit: int) -> str:
    return ABSENT if size is None else f"{size / unit:.3f}"
