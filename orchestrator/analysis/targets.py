"""What a user named on the command line: studies, trials by id or its beginning, or a trial's name within a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.analysis.rows import Row
from orchestrator.analysis.stored import study_rows, trial_rows
from orchestrator.config.errors import UsageError
from orchestrator.config.nearest import nearest

if TYPE_CHECKING:
    from sqlalchemy import Connection

_SHORTEST_ID = 4


@dataclass(frozen=True)
class Found:
    """Rows of what was named, and whether each word named a trial rather than a study."""

    rows: tuple[Row, ...]
    trials: tuple[str, ...]
    """Ids of the trials that were named one by one."""
    studies: tuple[str, ...]


def find(connection: Connection, words: Sequence[str]) -> Found:
    """The rows of studies or trials. Without a word, those of the newest study.

    Raises:
        UsageError: a word names nothing, or several trials; with the nearest study.
    """
    from sqlalchemy import select

    from orchestrator.store.models import Study

    known = list(connection.execute(select(Study.name).order_by(Study.created_at, Study.id)).scalars())
    if not words:
        if not known:
            raise UsageError("There is no study in the database yet: run one, or `import` results.")
        words = known[-1:]
    studies = [word for word in words if word in known]
    trials = [_trial(connection, word, known) for word in words if word not in known]
    rows: dict[tuple[str, str | None], Row] = {}
    for study in studies:
        rows |= {(row.trial, row.attempt): row for row in study_rows(connection, study)}
    if trials:
        rows |= {(row.trial, row.attempt): row for row in trial_rows(connection, trials)}
    return Found(tuple(rows.values()), tuple(trials), tuple(studies))


def _trial(connection: Connection, word: str, studies: Sequence[str]) -> str:
    from sqlalchemy import select

    from orchestrator.store.models import Trial

    if len(word) >= _SHORTEST_ID:
        ids = list(
            connection.execute(
                select(Trial.id).where(Trial.id.startswith(word, autoescape=True)).order_by(Trial.id).limit(5)
            ).scalars()
        )
        if len(ids) == 1 or word in ids:
            return word if word in ids else ids[0]
        if ids:
            raise UsageError(f"{word!r} is the beginning of several trials: {', '.join(ids)}, …")
    match = nearest(word, studies)
    hint = f"did you mean {match!r}?" if match else f"known studies: {', '.join(studies) or 'none'}."
    raise UsageError(f"{word!r} is neither a study nor a trial; {hint}")
