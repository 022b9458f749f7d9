"""What a report's figures do not say: rows without a result, and measurements that were not made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.comparison import Comparison, Group
from orchestrator.analysis.predicted import Predicted
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope
from orchestrator.report.page.trials import Shown, spans
from orchestrator.report.text import plain
from orchestrator.vocabulary import is_result

_MOST_NAMES = 12


@dataclass(frozen=True)
class Gap:
    """One thing that was not measured, and of what: in words, or by the names of candidates."""

    what: str
    of: str = ""
    names: tuple[str, ...] = ()
    more: int = 0
    """Candidates beside those of `names`."""


def gaps(
    comparison: Comparison,
    shown: Sequence[Sequence[Shown]],
    forecasts: Sequence[Sequence[Predicted]],
    *,
    target_known: bool,
) -> list[Gap]:
    """In the order that matters for a decision. `shown` and `forecasts` go by the groups of the comparison."""
    found = [gap for group in comparison.groups for gap in _of_group(group, many=len(comparison.groups) > 1)]
    for entries in shown:
        found += _of_entries(entries)
    for group, expected in zip(comparison.groups, forecasts, strict=True):
        found += _of_forecasts(group, expected)
    if not target_known:
        found.append(Gap("A memory target: none was given, so nothing is said to fit one.", "the study"))
    return found


def _of_group(group: Group, *, many: bool) -> Iterator[Gap]:
    of = f"match key {group.digest}" if many else "all rows"
    lines = group.lines
    waiting = [line.text for line in lines if line.label is None and line.step_ms is None]
    if waiting and group.first_row.origin == ORIGIN_PUBLISHED:
        yield _of_some("An outcome: their source gives none.", waiting)
    elif waiting:
        yield _of_some("Candidates without a result yet.", waiting)
    unfinished = [line.text for line in lines if line.label is not None and not is_result(line.label)]
    if unfinished:
        yield _of_some("Candidates that ended for a reason that says nothing of their memory.", unfinished)
    if group.control is None:
        yield Gap("A control (selective with []): what recompute costs is not known.", of)
    single = [line.text for line in lines if line.passed == 1 and len(line.runs) == 1]
    if single and group.first_row.origin != ORIGIN_PUBLISHED:
        yield _of_some("Repeats: one run each, so scatter between runs is not known.", single)
    partial = [line.text for line in lines if line.peak_scope is PeakScope.ONE_RANK]
    if partial:
        yield _of_some("Every rank: some left no record, so a hotter one may be missing.", partial)
    if group.first_row.device_kind == "cpu":
        yield Gap("A GPU: these rows were measured on a CPU.", of)
    if group.first_row.origin == ORIGIN_PUBLISHED:
        yield Gap("Anything here by this project: the rows are published by their source.", of)
        yield Gap("The stage of each peak, and each rank's share of it.", of)
        yield Gap("A prediction to hold against them: their source does not state a whole configuration.", of)


def _of_entries(entries: Sequence[Shown]) -> Iterator[Gap]:
    early = [one.name for one in entries if one.row.effective is None and one.row.attempt and not one.row.source]
    if early:
        yield _of_some("The effective configuration: they ended before the framework had finished it.", early)
    cut = [one.name for one in entries if one.cells_left_out]
    if cut:
        yield _of_some("The coldest ranks are left out of these heat maps; the database has them.", cut)
    for where in dict.fromkeys(one.unrecorded for one in entries if one.unrecorded):
        paused = [one.name for one in entries if one.unrecorded == where]
        yield _of_some(f"Peaks by stage in {spans(where)}: recording paused there, only maxima are known.", paused)
    thinned = [one.name for one in entries if one.history_every > 1]
    if thinned:
        every = max(one.history_every for one in entries)
        yield _of_some(f"Of the iterations, only each {every}th is in these charts; the database has all.", thinned)


def _of_forecasts(group: Group, found: Sequence[Predicted]) -> Iterator[Gap]:
    for problem in dict.fromkeys(one.problem for one in found if one.problem):
        names = [one.line.text for one in found if one.problem == problem]
        yield _of_some(f"A prediction to hold against the measurement: {plain(problem).rstrip('.')}.", names)


def _of_some(what: str, names: Sequence[str]) -> Gap:
    return Gap(what, "", tuple(plain(name) for name in names[:_MOST_NAMES]), max(0, len(names) - _MOST_NAMES))
