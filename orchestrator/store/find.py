"""From what a person typed to one trial or study: ids and names may be cut short where that is clear."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from sqlalchemy import Connection, or_, select

from orchestrator.config.errors import UsageError
from orchestrator.store.find_study import listed
from orchestrator.store.models import Study, StudyTrial, Trial


@dataclass(frozen=True)
class Found:
    """A trial by its id, or a study by its name."""

    kind: str
    """`trial` or `study`."""
    name: str


def find(connection: Connection, word: str) -> Found:
    """The study or trial that `word` names: a study's name, a trial's id, a trial's name, or the beginning of one;
    also STUDY/NAME, for a trial's name that other studies have as well.

    Raises:
        UsageError: nothing, or more than one thing, is called so; with the nearest names.
    """
    if connection.execute(select(Study.id).where(Study.name == word)).first() is not None:
        return Found("study", word)
    exact = _trials(connection, word, whole=True) | _trials(connection, _bracketed(word), whole=True)
    trials = exact or _trials(connection, word, whole=False)
    starts = select(Study.name).where(Study.name.startswith(word, autoescape=True)).order_by(Study.name)
    studies = [] if exact or not word else list(connection.execute(starts).scalars())
    if len(trials) + len(studies) == 1:
        return Found("trial", next(iter(trials))) if trials else Found("study", studies[0])
    if not trials and not studies:
        trials = _in_study(connection, word)
        if len(trials) == 1:
            return Found("trial", next(iter(trials)))
    if trials or studies:
        raise UsageError(f"{word!r} is not clear: it may be {listed([*studies, *map(_spelt, trials.items())])}")
    raise UsageError(f"Nothing is called {word!r}; {_nearest(connection, word)}")


def _trials(connection: Connection, word: str, *, whole: bool) -> dict[str, str]:
    """Trials of that id or name, by id, with a name."""
    query = select(Trial.id, StudyTrial.name).outerjoin(StudyTrial, StudyTrial.trial_id == Trial.id)
    if whole:
        query = query.where(or_(Trial.id == word, StudyTrial.name == word))
    elif word:
        query = query.where(
            or_(Trial.id.startswith(word, autoescape=True), StudyTrial.name.startswith(word, autoescape=True))
        )
    return {row.id: row.name or "" for row in connection.execute(query.order_by(Trial.id))}


def _bracketed(labels: str) -> str:
    """A trial's name from its labels as tables list them, without brackets: `[layernorm,moe]` of `layernorm, moe`."""
    labels, repeat, number = labels.partition(" (repeat ")
    return f"[{','.join(label.strip() for label in labels.split(','))}]{repeat}{number}"


def _in_study(connection: Connection, word: str) -> dict[str, str]:
    """Trials that STUDY/NAME may mean, by id, with a name: of that name, else of one that begins so."""
    study, slash, name = word.partition("/")
    if not slash or not name:
        return {}
    query = (
        select(StudyTrial.trial_id, StudyTrial.name)
        .join(Study, Study.id == StudyTrial.study_id)
        .where(Study.name == study)
        .order_by(StudyTrial.trial_id)
    )
    for matching in (
        StudyTrial.name == name,
        StudyTrial.name == _bracketed(name),
        StudyTrial.name.startswith(name, autoescape=True),
    ):
        found = {row.trial_id: row.name for row in connection.execute(query.where(matching))}
        if found:
            return found
    return {}


def _spelt(trial: tuple[str, str]) -> str:
    return f"{trial[0]} ({trial[1]})" if trial[1] else trial[0]


def _nearest(connection: Connection, word: str) -> str:
    studies = list(connection.execute(select(Study.name).order_by(Study.name)).scalars())
    trials = connection.execute(select(StudyTrial.trial_id, StudyTrial.name)).all()
    names = {**{row.trial_id: row.trial_id for row in trials}, **{row.name: row.name for row in trials}}
    near = difflib.get_close_matches(word, [*studies, *names], n=3, cutoff=0.5)
    if near:
        return f"did you mean {listed(near)}?"
    return f"there are the studies {listed(studies)}" if studies else "nothing has been run yet"
