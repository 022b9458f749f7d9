"""What a page can show of each candidate: its settings, its memory by rank, stage and iteration, its own words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.analysis.comparison import Group, Line
from orchestrator.analysis.rows import Row
from orchestrator.records.rank import IterationRecord
from orchestrator.report.figures.frontier import kind_of
from orchestrator.report.text import plain
from orchestrator.report.trial import NOT_STATED, setting_rows
from orchestrator.store.memory_map import Cell, Executed
from orchestrator.vocabulary import Stage
from orchestrator.vocabulary.units import format_bytes

MOST_CELLS = 48_000
"""Cells of heat maps in one page: beyond, the coldest ranks of the largest jobs are left out, and the page says so."""

MOST_POINTS = 28_000
"""Points of the charts through the iterations in one page: beyond, every second, third, ... iteration is shown."""

Setting = tuple[str, str, str, bool]
"""Name, requested, effective, and whether the framework made another value of one that was asked for."""

_MOST_SPANS = 4
MOST_BESIDE_CONTROL = 4
"""Ranks up to which the control's heat map stands below a candidate's."""

_RECIPE = "recipe"
_FIRST = 3
"""Iterations that are always shown: memory settles in them."""


@dataclass(frozen=True)
class Shown:
    """One candidate of one match key, by the run that decides."""

    key: str
    """Unique in the page."""
    line: Line
    row: Row
    kind: str
    place: str
    """Where it ended or was hottest."""
    settings: tuple[Setting, ...]
    cells: tuple[Cell, ...] = ()
    control_cells: tuple[Cell, ...] = ()
    """Those of the control, where they stand beside these."""
    cells_left_out: int = 0
    """Ranks whose memory is not shown."""
    history: tuple[IterationRecord, ...] = ()
    history_rank: int | None = None
    history_every: int = 1
    """Beside the first iterations, only each so many-th is kept."""
    unrecorded: tuple[tuple[int, int], ...] = ()
    """Runs of iterations, first and last, in which recording by stage paused."""
    executed: Executed | None = None

    @property
    def name(self) -> str:
        return plain(self.line.text)

    @property
    def has_history(self) -> bool:
        """Whether any iteration has its peaks by stage."""
        return any(row.peak_allocated is not None for iteration in self.history for row in iteration.stages)

    @property
    def heat_about(self) -> str:
        """What a reader of the heat map must know."""
        paused = f", without {spans(self.unrecorded)}, in which recording paused" if self.unrecorded else ""
        return f"Largest allocated memory of each stage, from set-up to the end of the steady window{paused}."

    @property
    def history_about(self) -> str:
        """What a reader of the chart through the iterations must know."""
        several = self.history_rank is not None and self.row.world_size != 1
        of = f"Of rank {self.history_rank}, the hottest. " if several else ""
        paused = f"Recording by stage paused in {spans(self.unrecorded)}. " if self.unrecorded else ""
        if all(iteration.peak_allocated is None for iteration in self.history):
            return f"{of}{paused}".rstrip()
        counts = ", which counts them too" if paused else ""
        return f"{of}{paused}The dotted line is the run's maximum so far{counts}."


@dataclass
class Memory:
    """What was read for the executions of a comparison, by trial and attempt."""

    executed: Mapping[tuple[str, str], Executed] = field(default_factory=dict)
    cells: Mapping[int, Sequence[Cell]] = field(default_factory=dict)
    histories: Mapping[int, Sequence[IterationRecord]] = field(default_factory=dict)


def shown_lines(groups: Sequence[Group], chosen: Iterable[Line], memory: Memory) -> list[list[Shown]]:
    """Every line of every group."""
    taken = set(map(id, chosen))
    total = sum(len(memory.cells.get(one.id, ())) for one in memory.executed.values())
    share = min(1.0, MOST_CELLS / total) if total else 1.0
    points = sum(len(one.stages) + 1 for history in memory.histories.values() for one in history)
    every = max(1, -(-points // MOST_POINTS))
    return [
        _beside_control(
            [
                _shown(f"g{number}-{place}", line, memory, (share, every), id(line) in taken)
                for place, line in enumerate(group.lines)
            ]
        )
        for number, group in enumerate(groups)
    ]


def _beside_control(entries: list[Shown]) -> list[Shown]:
    """Each with the control's cells, where there are few ranks."""
    control = next((one for one in entries if one.line.is_control and one.row.passed), None)
    if control is None or len({cell.rank for cell in control.cells}) > MOST_BESIDE_CONTROL:
        return entries
    return [one if one is control or not one.cells else replace(one, control_cells=control.cells) for one in entries]


def _shown(key: str, line: Line, memory: Memory, kept_share: tuple[float, int], is_chosen: bool) -> Shown:
    share, every = (1.0, 1) if is_chosen else kept_share
    row = line.decided
    executed = memory.executed.get((row.trial, row.attempt or ""))
    cells = list(memory.cells.get(executed.id, ())) if executed else []
    if row.passed:  # what came after the steady window is in no peak
        cells = [cell for cell in cells if cell.stage != Stage.TEARDOWN]
    kept = _hottest(cells, share)
    history = memory.histories.get(executed.id, ()) if executed else ()
    return Shown(
        key=key,
        line=line,
        row=row,
        kind=kind_of(line, line if is_chosen else None),
        place=_place(line),
        settings=tuple(_settings(row)),
        cells=tuple(kept),
        cells_left_out=len({cell.rank for cell in cells}) - len({cell.rank for cell in kept}),
        history=tuple(one for place, one in enumerate(history) if place < _FIRST or place % every == 0),
        history_rank=row.peak.rank if row.peak else None,
        history_every=every if len(history) > _FIRST else 1,
        unrecorded=tuple(_unrecorded(history)),
        executed=executed,
    )


def spans(found: Sequence[tuple[int, int]]) -> str:
    """`iterations 6 to 10`, `iterations 2, 4 and 6`; of very many, how many."""
    if len(found) > _MOST_SPANS:
        return f"{sum(last - first + 1 for first, last in found)} iterations between {found[0][0]} and {found[-1][1]}"
    said = [str(first) if first == last else f"{first} to {last}" for first, last in found]
    several = len(said) > 1 or found[0][0] != found[0][1]
    return f"iteration{'s' if several else ''} " + " and ".join(
        [*([", ".join(said[:-1])] if said[1:] else []), said[-1]]
    )


def _unrecorded(history: Sequence[IterationRecord]) -> Iterable[tuple[int, int]]:
    """Of a rank that has peaks by stage at all: the iterations whose stages were only counted."""
    without = [one.number for one in history if all(row.peak_allocated is None for row in one.stages)]
    if len(without) == len(history):
        return
    first = last = None
    for number in without:
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = number
    if first is not None and last is not None:
        yield first, last


def _hottest(cells: list[Cell], share: float) -> list[Cell]:
    if share >= 1.0:
        return cells
    by_rank: dict[int, int] = {}
    for cell in cells:
        by_rank[cell.rank] = max(by_rank.get(cell.rank, 0), cell.allocated)
    kept = set(sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))[: max(1, int(len(by_rank) * share))])
    return [cell for cell in cells if cell.rank in kept]


def _place(line: Line) -> str:
    row = line.decided
    if not row.passed and row.stage is not None:
        rank = "" if row.rank is None else f" on rank {row.rank}"
        after = "" if row.last_iteration is None else f", after {row.last_iteration} iterations"
        return f"stopped in {row.stage}{rank}{after}"
    if line.peak is None:
        return "no peak on record"
    rank = "" if line.peak.rank is None or row.world_size == 1 else f" on rank {line.peak.rank}"
    stage = "" if line.peak.stage is None else f" in {line.peak.stage}"
    several = f"; of {len(line.runs)} runs, that of the largest peak is shown" if len(line.runs) > 1 else ""
    return f"peak {format_bytes(line.peak.allocated)}{rank}{stage}{several}"


def _settings(row: Row) -> Iterable[Setting]:
    for path, asked, became, differs in setting_rows(row.requested, row.effective):
        yield plain(path), _value(asked), "?" if row.effective is None else _value(became), differs and asked != _RECIPE


def _value(value: Any) -> str:
    if value is NOT_STATED:
        return "-"
    return plain(value) if isinstance(value, str) else plain(json.dumps(value, ensure_ascii=False, default=str))
