"""Results in a notebook or a script: the answers of our own verbs, as objects and as frames.

    from orchestrator import api
    study = api.connect("results").study("demo")
    study.to_pandas()

`study.pick(target_gb=60)` is the line that `recommend` names, `study.figure("frontier")` the chart of the report.
Nothing here writes: records that ranks have left since are taken in by `python -m orchestrator collect`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.analysis.comparison import Comparison, Group, Line, compare
from orchestrator.analysis.recommend import Recommendation, recommend
from orchestrator.analysis.refusal import SIDE_BY_SIDE, only_key, refuse_unmatched
from orchestrator.analysis.searched import left_out, searches
from orchestrator.analysis.targets import Found, find_rows
from orchestrator.config.errors import EnvironmentFailure, NothingQualifies, UsageError
from orchestrator.config.nearest import nearest
from orchestrator.report.export_rows import FIELDS, records
from orchestrator.report.text import plain
from orchestrator.select.pick import Objective
from orchestrator.vocabulary.units import GB

if TYPE_CHECKING:
    from orchestrator.report.figures.figure import Figure
    from orchestrator.report.page.content import Content
    from orchestrator.report.page.trials import Memory
    from orchestrator.store.database import Store
    from orchestrator.store.overview import StudyProgress

_Item = TypeVar("_Item")

FIGURES = ("frontier", "stages", "history", "forecast")
"""What `Results.figure` draws."""


def connect(where: str | Path) -> Database:
    """Open a results folder, an SQLite file or a database URL, to be read.

    Raises:
        UsageError: there is no database.
        EnvironmentFailure: it cannot be opened.
    """
    from orchestrator.store.database import default_url, open_store

    text = str(where)
    if "://" not in text:
        path = Path(text).expanduser().absolute()
        text = default_url(path) if path.is_dir() else str(path)
    return Database(open_store(text))


def predict(
    *overrides: str, effective: dict[str, Any] | None = None, transformer_engine: str | None = None
) -> dict[str, Any]:
    """What `predict --json OVERRIDES` says of one candidate; no database is read. Sizes are bytes.

    `peak`, `low`, `high`; `ranks` with each stage's peaks in the `first` and in `later` iterations; `assumed`,
    `unknown`, `cost`.

        api.predict("study=moonlight_16l_1gpu", "study.candidates=[]", "recompute_modules=[moe]", "recompute=selective")

    `effective` is a finished configuration (a rank record's `effective`), whose settings the overrides change.

    Raises:
        UsageError: the overrides are wrong, or leave open what a prediction needs.
    """
    from orchestrator.config.compose import compose
    from orchestrator.predict.memory import predict_memory
    from orchestrator.predict.problem import CannotPredictError
    from orchestrator.predict.read import read_job
    from orchestrator.predict.timing import cost_of
    from orchestrator.predict.verdict import range_of
    from orchestrator.report.predict import Forecast, as_json

    request = compose(list(overrides))
    try:
        reading = read_job(request, effective, transformer_engine)
        found = predict_memory(reading.job)
    except CannotPredictError as error:
        raise UsageError(f"No prediction: {error}") from error
    spread, cost = range_of(reading.job, found), cost_of(reading.job)
    return as_json(Forecast(" ".join(overrides), found, spread, cost, None, reading.assumed))


@dataclass(frozen=True)
class Database:
    """An open database. Also a context manager, which closes it."""

    store: Store

    def studies(self) -> list[StudyProgress]:
        """Every study with how far it is, the newest first."""
        from orchestrator.store.overview import studies

        with self.store.reading() as connection:
            return studies(connection)

    def study(self, *what: str, deltas: bool = True) -> Results:
        """The comparison of studies, or of trials by id; without a word, of the newest study.

        `deltas=False` holds rows that do not match side by side.

        Raises:
            UsageError: a word names nothing, or several things.
            NothingQualifies: nothing of it has run.
        """
        with self.store.reading() as connection:
            found = find_rows(connection, what)
            found = found.without(left_out(searches(connection, found.studies)))
        if not found.rows:
            raise NothingQualifies(f"Nothing of {', '.join(what) or 'this study'} has run yet.")
        return Results(found, compare(found.rows, deltas=deltas), self.store)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Results:
    """A comparison: its lines are candidates, typed, with sizes in bytes and times in milliseconds."""

    found: Found
    comparison: Comparison
    store: Store

    @property
    def groups(self) -> tuple[Group, ...]:
        """One for each match key: only lines of one group have deltas against each other."""
        return self.comparison.groups

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every candidate of every group."""
        return tuple(line for group in self.groups for line in group.lines)

    @property
    def title(self) -> str:
        """What was asked for."""
        return ", ".join(self.found.studies or self.found.trials)

    def key(self, beginning: str | None) -> Results:
        """Only the match keys that begin so.

        Raises:
            UsageError: none does.
        """
        return Results(self.found, only_key(self.comparison, beginning), self.store)

    def matched(self, instead: str = SIDE_BY_SIDE) -> Results:
        """Itself. `instead` is what a refusal says to do.

        Raises:
            UsageError: studies or trials named one by one do not match; with the fields that differ.
        """
        refuse_unmatched(self.comparison, self.found, instead)
        return self

    def records(self) -> list[dict[str, Any]]:
        """One flat record a run, as `export` writes it; the fields are `report.export_rows.FIELDS`."""
        return records(self.comparison)

    def to_pandas(self) -> Any:
        """The records as a pandas DataFrame with nullable types.

        Raises:
            EnvironmentFailure: pandas is not installed.
        """
        pandas = _library("pandas")
        kinds = {str: "string", int: "Int64", float: "Float64", bool: "boolean"}
        columns = {field.name: [row[field.name] for row in self.records()] for field in FIELDS}
        return pandas.DataFrame(
            {field.name: pandas.array(columns[field.name], dtype=kinds[field.kind]) for field in FIELDS}
        )

    def to_polars(self) -> Any:
        """The records as a polars DataFrame.

        Raises:
            EnvironmentFailure: polars is not installed.
        """
        polars = _library("polars")
        kinds = {str: polars.String, int: polars.Int64, float: polars.Float64, bool: polars.Boolean}
        return polars.DataFrame(self.records(), schema={field.name: kinds[field.kind] for field in FIELDS})

    def recommend(
        self, target_gb: float | None = None, *, headroom_gb: float = 0.0, objective: str = "step_time"
    ) -> list[Recommendation]:
        """The choice of each match key with its reasons. Sizes in GB (1e9 bytes); without a target, the study's."""
        target = target_gb if target_gb is not None else self.found.target_gb
        answers = recommend(
            self.comparison,
            target=None if target is None else round(target * GB),
            headroom=round(headroom_gb * GB),
            objective=Objective(objective),
        )
        given = "" if target is None else "from study.target_gb" if target_gb is None else "given here (--target-gb)"
        return [replace(answer, target_from=given) for answer in answers]

    def pick(self, target_gb: float | None = None, **options: Any) -> Line | None:
        """The line to take; None where nothing qualifies. Options as for `recommend`.

        Raises:
            UsageError: there are several match keys, which are never weighed against each other.
        """
        answers = self.recommend(target_gb, **options)
        if len(answers) > 1:
            keys = ", ".join(group.digest for group in self.groups)
            raise UsageError(f"There are several match keys ({keys}): choose one with key(), then pick.")
        return answers[0].chosen

    def figure(self, name: str, candidate: str | None = None, *, target_gb: float | None = None) -> Figure:
        """A chart of the report: `frontier` and `forecast` of a match key, `stages` and `history` of a candidate.

        A candidate is named as the table names it; by default the one that the report shows.

        Raises:
            UsageError: no such figure or candidate, or it has not what the figure shows.
        """
        from orchestrator.report.figures.frontier import frontier
        from orchestrator.report.figures.stages import heat_map, history

        if name not in FIGURES:
            match = nearest(name, FIGURES)
            hint = f"did you mean {match}?" if match else f"there is {', '.join(FIGURES)}"
            raise UsageError(f"There is no figure {name!r}; {hint}")
        if name == "frontier":
            return frontier(self.recommend(target_gb)[0])
        content = self.content(target_gb)
        if name == "forecast":
            forecasts = [section.forecast for section in content.sections if section.forecast is not None]
            return _known(forecasts, "There is no prediction of these rows.")
        every = [one for section in content.sections for one in section.shown]
        first = content.first_shown()
        asked = [one for one in every if one.name == candidate] if candidate else [first] if first else []
        shown = _known(asked, f"There is no candidate {candidate!r}; there is {'; '.join(one.name for one in every)}")
        of = plain(shown.line.text)
        if name == "stages" and shown.cells:
            return heat_map("stages", f"Peak allocated by rank and stage: {of}", shown.cells, shown.control_cells)
        if name == "history" and shown.history:
            return history("history", f"Peak allocated through the iterations: {of}", shown.history)
        raise UsageError(f"No memory by stage is on record for {of}.")

    def content(self, target_gb: float | None = None, *, headroom_gb: float = 0.0) -> Content:
        """Everything that the report says, gathered."""
        from orchestrator.report.own_version import own_version
        from orchestrator.report.page.content import gather

        answers = self.recommend(target_gb, headroom_gb=headroom_gb)
        return gather(self.title, self.comparison, answers, self.memory(), made_at=time.time(), version=own_version())

    def memory(self) -> Memory:
        """Memory by rank, stage and iteration of the runs that decide."""
        from orchestrator.report.page.content import read_memory

        with self.store.reading() as connection:
            return read_memory(connection, self.comparison)

    def html(self, target_gb: float | None = None, *, headroom_gb: float = 0.0) -> str:
        """The report as one self-contained page.

        Raises:
            EnvironmentFailure: the extra `report` is not installed.
        """
        from orchestrator.report.page.page import html

        return html(self.content(target_gb, headroom_gb=headroom_gb))


def _known(found: Sequence[_Item], problem: str) -> _Item:
    if not found:
        raise UsageError(problem)
    return found[0]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvironmentFailure(f"{name} is not installed: pip install {name}.") from error
