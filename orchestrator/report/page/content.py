"""Everything that a report shows, gathered once: the page and the Markdown are two ways to print it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.analysis.command import Commands
from orchestrator.analysis.comparison import Comparison, Group
from orchestrator.analysis.diagnosis import Finding, diagnose
from orchestrator.analysis.failure_rules import FAILURE_TABLE
from orchestrator.analysis.floor import OPTIMIZER_FLOOR
from orchestrator.analysis.further_rules import FLOOR_RULE, FURTHER_RULES
from orchestrator.analysis.predicted import Predicted, predicted
from orchestrator.analysis.recommend import Recommendation
from orchestrator.analysis.reproduce import commands_for
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, Row
from orchestrator.report.compare import LAST_ITERATION, footnotes, group_table, group_title
from orchestrator.report.figures.figure import Figure
from orchestrator.report.figures.forecast import forecast
from orchestrator.report.figures.frontier import frontier
from orchestrator.report.page.decision import Decision, decision
from orchestrator.report.page.matrix import Matrix, distinctions, matrix
from orchestrator.report.page.provenance import Item, provenance
from orchestrator.report.page.trials import Memory, Shown, shown_lines
from orchestrator.report.page.unmeasured import Gap, gaps
from orchestrator.report.table import Table, reordered, said_columns, without
from orchestrator.store.memory_map import executions, histories, memory_maps
from orchestrator.vocabulary.units import GB

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class Section:
    """One match key."""

    decision: Decision
    title: str
    distinction: str
    """What sets it apart from the other match keys; empty where there is one."""
    frontier: Figure
    table: Table
    notes: tuple[str, ...]
    shown: tuple[Shown, ...]
    predicted: tuple[Predicted, ...]
    forecast: Figure | None
    provenance: tuple[Item, ...]

    @property
    def is_drawn(self) -> bool:
        """Whether a candidate has anything to stand in the chart by: a step time or a peak."""
        lines = self.decision.answer.group.lines
        return any(line.step_ms is not None or (line.peak and line.peak.allocated is not None) for line in lines)

    @property
    def forecast_about(self) -> str:
        """What makes the predicted ranges wide, and whose peak was measured in another stage than predicted."""
        terms = [term for one in self.predicted if one.range for term in one.range.terms]
        widest = max(terms, key=lambda term: term.high - term.low, default=None)
        wide = widest is not None and widest.high > widest.low
        said = [f"What makes the bars wide is most of all the {widest.name}: {widest.why}."] if widest and wide else []
        peaks = [(one.stage, one.line.peak.stage) for one in self.predicted if one.line.passed and one.line.peak]
        moved = [(stage, str(found)) for stage, found in peaks if stage and found and str(found) != stage]
        said += [
            f"{moved.count(pair)} of {len(peaks)} peaks were predicted in {pair[0]} and measured in {pair[1]}."
            for pair in dict.fromkeys(moved)
        ]
        return " ".join(said)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What its predictions took for granted."""
        return tuple(dict.fromkeys(note for one in self.predicted for note in one.assumed))


@dataclass(frozen=True)
class Content:
    """A report of one or several studies."""

    title: str
    sections: tuple[Section, ...]
    matrix: Matrix | None
    findings: tuple[Finding, ...]
    gaps: tuple[Gap, ...]
    made_at: float
    """Unix seconds."""
    version: str
    """Of this program."""

    @property
    def candidates(self) -> int:
        return sum(len(section.shown) for section in self.sections)

    def first_shown(self) -> Shown | None:
        """The candidate whose memory is shown first: the choice, else the first that has any."""
        every = [one for section in self.sections for one in section.shown]
        chosen = {id(section.decision.answer.chosen) for section in self.sections}
        every.sort(key=lambda one: id(one.line) not in chosen)
        with_memory = (one for one in every if one.cells or one.history)
        return next(with_memory, every[0] if every else None)


def read_memory(connection: Connection, comparison: Comparison) -> Memory:
    """Memory by rank and stage, and the hot rank's iterations, of the runs that decide each line."""
    rows = [line.decided for group in comparison.groups for line in group.lines]
    executed = executions(connection, [(row.trial, row.attempt) for row in rows if row.attempt])
    hot = {
        found.id: row.peak.rank
        for row in rows
        if (found := executed.get((row.trial, row.attempt or ""))) and row.peak and row.peak.rank is not None
    }
    return Memory(executed, memory_maps(connection, [one.id for one in executed.values()]), histories(connection, hot))


def gather(
    title: str,
    comparison: Comparison,
    answers: Sequence[Recommendation],
    memory: Memory,
    *,
    made_at: float,
    version: str,
) -> Content:
    """All of a report. Match keys with a recommendation come first."""
    chosen = [answer.chosen for answer in answers if answer.chosen is not None]
    shown = shown_lines(comparison.groups, chosen, memory)
    apart = distinctions(comparison)
    targets = [answer.target for answer in answers if answer.target is not None]
    commands = commands_for([_asked_row(answer) for answer in answers], targets[0] / GB if targets else None)
    forecasts = [[] if _is_published(answer) else predicted(answer.group) for answer in answers]
    sections = [
        _section(number, answer, shown[number], apart[number], commands[number], forecasts[number], version)
        for number, answer in enumerate(answers)
    ]
    of_keys = {
        answer.group.digest: one for answer, one in zip(answers, commands, strict=True) if not _is_published(answer)
    }
    # A decision that says it already is not said again.
    told = any(verdict.id == OPTIMIZER_FLOOR for answer in answers for verdict in answer.verdicts)
    rules = [rule for rule in (*FAILURE_TABLE, *FURTHER_RULES) if not told or rule.id != FLOOR_RULE]
    return Content(
        title=title,
        sections=tuple(sorted(sections, key=lambda one: not one.decision.recommends)),
        matrix=matrix(comparison, chosen),
        findings=tuple(diagnose(comparison, rules, of_keys)),
        gaps=tuple(
            gaps(comparison, shown, forecasts, target_known=any(answer.pick.limit is not None for answer in answers))
        ),
        made_at=made_at,
        version=version,
    )


def _asked_row(answer: Recommendation) -> Row:
    """A row that a user asked for, rather than a control that a job added."""
    rows = [row for line in answer.group.lines for row in line.runs]
    return next((row for row in rows if not row.is_control_run), rows[0])


def _is_published(answer: Recommendation) -> bool:
    return answer.group.first_row.origin == ORIGIN_PUBLISHED


def _section(
    number: int,
    answer: Recommendation,
    shown: Sequence[Shown],
    apart: str,
    commands: Commands,
    found: Sequence[Predicted],
    version: str,
) -> Section:
    group = answer.group
    known = [one for one in found if one.range is not None]
    return Section(
        decision=decision(answer, commands),
        title=group_title(group),
        distinction=apart,
        frontier=frontier(answer, f"frontier-{number}"),
        table=_table(group),
        notes=(*footnotes(group), *_recording(shown)),
        shown=tuple(shown),
        predicted=tuple(found),
        forecast=forecast(f"forecast-{number}", "Predicted against measured peak", found) if known else None,
        provenance=(*provenance(group, shown), ("orchestrator of this report", version)),
    )


_FOREMOST = ("step (ms)", "peak allocated", "time vs []", "allocated vs []", "label")
"""Columns that stand next to the name, so that a phone shows them first."""


def _table(group: Group) -> Table:
    """The guide's table, what decides first, without columns that say nothing: where all passed, each reached its last
    iteration, and one rank is always the hottest.
    """
    table = said_columns(group_table(group))
    if all(line.passed == len(line.runs) for line in group.lines):
        table = without(table, LAST_ITERATION)
    if group.first_row.world_size == 1:
        table = without(table, "rank")
    headers = [column.header for column in table.columns]
    first = [place for name in _FOREMOST for place, header in enumerate(headers) if header.startswith(name)]
    order = [0, *first, *(place for place in range(1, len(headers)) if place not in first)]
    return reordered(table, order)


def _recording(shown: Sequence[Shown]) -> list[str]:
    """Whose steady iterations were timed while memory was recorded by stage, and whose were not."""
    paused = [one.name for one in shown if one.unrecorded and one.has_history]
    on = [one.name for one in shown if not one.unrecorded and one.has_history]
    if not paused or not on:
        return []
    return [
        f"recording by stage: on while {'; '.join(on)} {'was' if len(on) == 1 else 'were'} timed, where it cost about "
        f"0.5% of the step or less; paused in the window of {'; '.join(paused)}, whose times hold less of it."
    ]
