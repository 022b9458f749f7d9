"""GPU-hours of studies: what their trials took, and what need not be spent because a trial has its result already."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from sqlalchemy import Connection, text

from orchestrator.predict.hours import Hours, saved_hours, spent_hours

_ON_GPUS = "t.trainer = 'bridge'"


@dataclass(frozen=True)
class StudyHours:
    """GPU-hours of one study."""

    study: str
    spent: float
    """By all of its executions on GPUs, controls and failures included; one that runs counts until now."""
    saved: float = 0.0
    """What its whole grid would take beyond that: the executions whose results it uses and that others made,
    and the candidates that a search left out, at the mean of those that it ran."""
    runs: int = 0
    """Its own executions on GPUs."""

    def without(self, skipped: int) -> StudyHours:
        """The same study, whose search left out so many candidates."""
        if not self.runs:
            return self
        mean = self.spent / self.runs
        each = Hours(mean, mean, mean)
        more = saved_hours([each] * (self.runs + skipped), [each] * self.runs)
        return replace(self, saved=self.saved + more)


def study_hours(connection: Connection, now: float, study: str | None = None) -> list[StudyHours]:
    """Of every study that has used GPUs, or uses results that have; by name."""
    own, others = _executions(connection, _OWN, study), _executions(connection, _OF_OTHERS, study)
    return [
        StudyHours(name, spent_hours(own[name], now), spent_hours(others[name], now), len(own[name]))
        for name in sorted({*own, *others})
    ]


def run_seconds(connection: Connection, study: str) -> list[float]:
    """What the runs of a study took that have ended, with any trainer."""
    query = """
        SELECT a.started_at AS started, a.ended_at AS ended FROM attempts a JOIN studies s ON s.id = a.study_id
        WHERE s.name = :name AND a.started_at IS NOT NULL AND a.ended_at IS NOT NULL"""
    return [row.ended - row.started for row in connection.execute(text(query), {"name": study})]


_OWN = f"""
    SELECT s.name AS study, t.world_size AS ranks, a.started_at AS started, a.ended_at AS ended
    FROM attempts a JOIN trials t ON t.id = a.trial_id JOIN studies s ON s.id = a.study_id
    WHERE {_ON_GPUS} AND a.started_at IS NOT NULL AND (a.ended_at IS NOT NULL OR a.state = 'running')"""

_OF_OTHERS = f"""
    SELECT s.name AS study, t.world_size AS ranks, a.started_at AS started, a.ended_at AS ended
    FROM study_trials st JOIN studies s ON s.id = st.study_id JOIN trials t ON t.id = st.trial_id
    JOIN attempts a ON a.trial_id = t.id
    WHERE {_ON_GPUS} AND a.decides AND a.label IS NOT NULL AND a.study_id <> st.study_id
        AND a.started_at IS NOT NULL AND a.ended_at IS NOT NULL AND st.status <> 'rejected'
        AND NOT EXISTS (SELECT 1 FROM attempts o WHERE o.trial_id = t.id AND o.study_id = st.study_id)"""


def _executions(
    connection: Connection, query: str, study: str | None
) -> defaultdict[str, list[tuple[int, float | None, float | None]]]:
    """Ranks, start and end of each, by study."""
    chosen, given = ("", {}) if study is None else (" AND s.name = :name", {"name": study})
    found: defaultdict[str, list[tuple[int, float | None, float | None]]] = defaultdict(list)
    for row in connection.execute(text(query + chosen), given):
        found[row.study].append((row.ranks, row.started, row.ended))
    return found
