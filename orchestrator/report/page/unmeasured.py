"""What a report's figures do not say: rows without a result, and measurements that were not made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.comparison import Comparison, Group
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope
from orchestrator.report.page.trials import Shown
from orchestrator.report.text import plain
from orchestrator.vocabulary import is_result


@dataclass(frozen=True)
class Gap:
    """One thing that was not measured, and of what."""

    what: str
    of: str


def gaps(comparison: Comparison, shown: Sequence[Sequence[Shown]], target_known: bool) -> list[Gap]:
    """In the order that matters for a decision."""
    found = [gap for group in comparison.groups for gap in _of_group(group, many=len(comparison.groups) > 1)]
    for entries in shown:
        found += _of_entries(entries)
    if not target_known:
        found.append(Gap("A memory target: none was given, so nothing is said to fit one.", "the study"))
    return found


def _of_group(group: Group, *, many: bool) -> Iterator[Gap]:
    of = f"match key {group.digest}" if many else "all rows"
    lines = group.lines
    waiting = [line.text for line in lines if line.label is None and line.step_ms is None]
    if waiting and group.first_row.origin == ORIGIN_PUBLISHED:
        yield Gap("An outcome: their source gives none.", _names(waiting))
    elif waiting:
        yield Gap("Candidates without a result yet.", _names(waiting))
    unfinished = [line.text for line in lines if line.label is not None and not is_result(line.label)]
    if unfinished:
        yield Gap("Candidates that ended for a reason that says nothing of their memory.", _names(unfinished))
    if group.control is None:
        yield Gap("A control (selective with []): what recompute costs is not known.", of)
    single = [line.text for line in lines if line.passed == 1 and len(line.runs) == 1]
    if single and group.first_row.origin != ORIGIN_PUBLISHED:
        yield Gap("Repeats: one run each, so scatter between runs is not known.", _names(single))
    partial = [line.text for line in lines if line.peak_scope is PeakScope.ONE_RANK]
    if partial:
        yield Gap("Every rank: some left no record, so a hotter one may be missing.", _names(partial))
    if group.first_row.device_kind == "cpu":
        yield Gap("A GPU: these rows were measured on a CPU.", of)
    if group.first_row.origin == ORIGIN_PUBLISHED:
        yield Gap("Anything here by this project: the rows are published by their source.", of)
        yield Gap("The stage of each peak, and each rank's share of it.", of)


def _of_entries(entries: Sequence[Shown]) -> Iterator[Gap]:
    early = [one.name for one in entries if one.row.effective is None and one.row.attempt and not one.row.source]
    if early:
        yield Gap("The effective configuration: they ended before the framework had finished it.", _names(early))
    cut = [one.name for one in entries if one.cells_left_out]
    if cut:
        yield Gap("The coldest ranks are left out of these heat maps; the database has them.", _names(cut))
    thinned = [one.name for one in entries if one.history_every > 1]
    if thinned:
        every = max(one.history_every for one in entries)
        yield Gap(f"Of the iterations, only each {every}th is in these charts; the database has all.", _names(thinned))


def _names(names: Sequence[str], most: int = 12) -> str:
    shown = "; ".join(plain(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown}; and {len(names) - most} more"
