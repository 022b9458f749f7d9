"""Reports of rows made by hand, for tests of the page and of the Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.recommend import recommend
from orchestrator.analysis.rows import Row
from orchestrator.records.rank import IterationRecord, StageMemory
from orchestrator.report.page.content import Content, gather
from orchestrator.report.page.trials import Memory
from orchestrator.store.memory_map import Cell, Executed
from orchestrator.vocabulary import Stage

RANKS = 2
GB = 10**9


def content(rows: Sequence[Row], *, target_gb: float | None = None, title: str = "demo", where: str = "/r") -> Content:
    """The report of these rows, each with memory of three stages on two ranks through three iterations."""
    comparison = compare(rows)
    answers = recommend(comparison, target=None if target_gb is None else round(target_gb * GB))
    ids = {(row.trial, row.attempt or ""): number for number, row in enumerate(rows, start=1)}
    executed = {key: Executed(number, where, (where,), where) for key, number in ids.items()}
    cells = {number: _cells(number) for number in ids.values()}
    histories = {number: _iterations(number) for number in ids.values()}
    return gather(title, comparison, answers, Memory(executed, cells, histories), made_at=0.0, version="test")


def _cells(number: int) -> list[Cell]:
    return [
        Cell(rank, str(stage), (number + 1) * GB // (rank + place + 1))
        for rank in range(RANKS)
        for place, stage in enumerate((Stage.MODEL_BUILD, Stage.FORWARD, Stage.OPTIMIZER_STEP))
    ]


def _iterations(number: int) -> list[IterationRecord]:
    return [
        IterationRecord(iteration, 10.0, stages=[StageMemory(Stage.FORWARD, 1, number * GB + iteration)])
        for iteration in (1, 2, 3)
    ]
