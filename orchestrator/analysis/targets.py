"""The rows of what a user named on the command line: studies, and trials by id, name, or the beginning of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.analysis.published_tables import PUBLISHED_STUDIES
from orchestrator.analysis.rows import Row
from orchestrator.analysis.stored import study_rows, trial_rows
from orchestrator.config.errors import UsageError
from orchestrator.config.sizes import problem_of_size

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class Found:
    """Rows of what was named, and which words named a trial and which a study."""

    rows: tuple[Row, ...]
    trials: tuple[str, ...]
    studies: tuple[str, ...]
    target_gb: float | None = None
    """`study.target_gb` of the one study that was named."""
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By study, candidates that a search ended without, and why of each: they have no row."""

    def without(self, left_out: Mapping[str, Mapping[str, str]]) -> Found:
        """The rows that there are to compare: none of a candidate that never ran because a search left it out."""
        kept = tuple(
            row
            for row in self.rows
            if row.attempt is not None or row.trial in self.trials or row.name not in left_out.get(row.study, ())
        )
        return replace(self, rows=kept, left_out=left_out)


def find_rows(connection: Connection, words: Sequence[str]) -> Found:
    """The rows of studies or trials. Without a word, those of the newest study that was measured.

    Raises:
        UsageError: a word names nothing, or several things; with the nearest names.
    """
    from orchestrator.store.find import find

    named = [find(connection, word) for word in words]
    studies = [one.name for one in named if one.kind == "study"] if words else [_newest(connection)]
    trials = [one.name for one in named if one.kind == "trial"]
    rows: dict[tuple[str, str | None], Row] = {}
    for study in studies:
        rows |= {(row.trial, row.attempt): row for row in study_rows(connection, study)}
    if trials:
        rows |= {(row.trial, row.attempt): row for row in trial_rows(connection, trials)}
    target = _target(connection, studies[0]) if len(studies) == 1 and not trials else None
    return Found(tuple(rows.values()), tuple(trials), tuple(studies), target)


def _target(connection: Connection, study: str) -> float | None:
    from sqlalchemy import select

    from orchestrator.store.models import Study

    settings = connection.execute(select(Study.settings).where(Study.name == study)).scalar() or {}
    target = settings.get("target_gb")
    # One of an older release may be out of every range: it is none.
    return float(target) if isinstance(target, (int, float)) and problem_of_size(target) is None else None


def _newest(connection: Connection) -> str:
    from sqlalchemy import select

    from orchestrator.store.models import Study

    newest_first = select(Study.name).order_by(Study.created_at.desc(), Study.id.desc())
    measured = newest_first.where(~Study.name.startswith(PUBLISHED_STUDIES))
    name = connection.execute(measured.limit(1)).scalar() or connection.execute(newest_first.limit(1)).scalar()
    if name is None:
        raise UsageError("There is no study in the database yet: run one, or `import` results.")
    return str(name)
