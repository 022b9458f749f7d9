"""What was predicted for the candidates of a comparison, beside what they measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.comparison import Group, Line
from orchestrator.plan.candidate import without_offloading
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.read import read_job
from orchestrator.predict.verdict import Range, range_of


@dataclass(frozen=True)
class Predicted:
    """One candidate: the predicted peak of its hottest rank, and between what it may lie. Bytes."""

    line: Line
    range: Range | None = None
    stage: str | None = None
    assumed: tuple[str, ...] = ()
    """What nothing said, and the prediction took for granted."""
    problem: str | None = None
    """Why there is no prediction."""

    @property
    def measured(self) -> int | None:
        """The peak of a run that passed: one cut short did not reach its own."""
        return self.line.peak.allocated if self.line.peak and self.line.passed else None

    @property
    def error(self) -> float | None:
        """Predicted over measured, as a fraction beyond 1."""
        if self.range is None or not self.measured:
            return None
        return self.range.expected / self.measured - 1


def predicted(group: Group) -> list[Predicted]:
    """A prediction of each line, from its request and what the framework made of it, or of a sibling."""
    finished = next((row.effective for line in group.lines for row in line.runs if row.effective is not None), None)
    software = next((row.software for line in group.lines for row in line.runs if row.software), {})
    return [_predicted(line, finished, software) for line in group.lines]


def _predicted(line: Line, sibling: Mapping[str, Any] | None, software: Mapping[str, Any]) -> Predicted:
    row = line.decided
    try:
        finished = row.effective if row.effective is not None else _as_of(line, sibling)
        if finished is not None:
            finished = {**finished, "software": row.software or software}
        reading = read_job(row.requested, finished)
        prediction = predict_memory(reading.job)
        stage = str(prediction.hottest.peak_stage)
        return Predicted(line, range_of(reading.job, prediction), stage, reading.assumed)
    except CannotPredictError as error:
        return Predicted(line, problem=str(error))


def _as_of(line: Line, sibling: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A sibling's configuration, offloading as this line does and not as the sibling did."""
    if sibling is None:
        return None
    model = sibling.get("model")
    kept = without_offloading(sibling)
    return {**kept, "model": {**kept["model"], **dict(line.candidate.offloading)}} if model else kept
