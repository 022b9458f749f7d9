"""What a command is going to do, in words: counts first, then what is refused and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.plan.finding import Finding, Kind
from orchestrator.plan.plan import Plan, PlannedTrial, Status
from orchestrator.report.text import plain

_MOST_NAMES = 6
_WARNINGS = (Kind.NO_EFFECT, Kind.RISKY, Kind.DIFFERS)


def summary_line(plan: Plan) -> str:
    """How many trials there are of each kind."""
    words = [
        (Status.NEW, "to run"),
        (Status.KNOWN, "known already"),
        (Status.DUPLICATE, "duplicate"),
        (Status.REJECTED, "rejected"),
    ]
    counts = [f"{plan.count(status)} {word}" for status, word in words if plan.count(status) or status is Status.NEW]
    return f"study {plain(plan.study)}: {len(plan.entries)} trials, {', '.join(counts)}"


def detail_lines(plan: Plan) -> list[str]:
    """What is refused (by rule), already known, and warned of."""
    lines = []
    for rule, entries in plan.rejections_by_rule().items():
        lines.append(f"rejected by {rule}: {_names(entries)}")
        lines += _unique(f"  {plain(plan.deciding(entry).message)}" for entry in entries)
    known = [f"{plain(entry.name)} ({plain(entry.label or 'running')})" for entry in plan.known]
    if known:
        lines.append(f"known already: {_cut(known)}")
    for entry in plan.duplicates:
        lines.append(f"duplicate: {plain(entry.name)}: {plain(entry.findings[-1].message)}")
    for finding, entries in _warnings(plan).items():
        lines.append(f"warning ({finding.kind}): {_names(entries)}: {plain(finding.message)}")
    lines += [f"note: {plain(note)}" for note in plan.notes]
    return lines


def entry_lines(plan: Plan) -> list[str]:
    """Every trial with what would be done about it."""
    width = max((len(plain(entry.name)) for entry in plan.entries), default=0)
    return [f"  {entry.trial}  {plain(entry.name):<{width}}  {_fate(entry)}".rstrip() for entry in plan.entries]


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON."""
    return {
        "study": plan.study,
        "counts": {str(status): plan.count(status) for status in Status},
        "notes": list(plan.notes),
        "trials": [
            {
                "trial": entry.trial,
                "name": entry.name,
                "repeat": entry.repeat,
                "status": str(entry.status),
                "label": entry.label,
                "world_size": entry.world_size,
                "findings": [
                    {"rule": item.rule, "kind": str(item.kind), "message": item.message, "source": item.source}
                    for item in entry.findings
                ],
            }
            for entry in plan.entries
        ],
    }


def _fate(entry: PlannedTrial) -> str:
    if entry.status is Status.NEW:
        return f"to run on {entry.world_size} ranks" if entry.world_size else "to run"
    if entry.status is Status.KNOWN:
        return f"known: {entry.label}" if entry.label else "running already"
    return str(entry.status)


def _warnings(plan: Plan) -> Mapping[Finding, list[PlannedTrial]]:
    found: dict[Finding, list[PlannedTrial]] = {}
    for entry in plan.entries:
        if entry.repeat == 0 and entry.status is not Status.REJECTED:
            for finding in entry.findings:
                if finding.kind in _WARNINGS:
                    found.setdefault(finding, []).append(entry)
    return found


def _names(entries: list[PlannedTrial]) -> str:
    return _cut([plain(entry.name) for entry in entries])


def _cut(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _unique(lines: Any) -> list[str]:
    return list(dict.fromkeys(lines))[:_MOST_NAMES]
