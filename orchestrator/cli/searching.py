"""`study.mode=escalate`: what a search is handed, and whether anything is left to try."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.place import note, writable_store
from orchestrator.cli.planning import Asked
from orchestrator.config.errors import UsageError
from orchestrator.select.modes import ESCALATE
from orchestrator.select.search import Search, Searched, Tried, decide

if TYPE_CHECKING:
    from orchestrator.dispatch.search import Decided
    from orchestrator.plan.plan import Plan, PlannedTrial
    from orchestrator.select.escalate import Decision


def search_of(asked: Asked, plan: Plan) -> Search | None:
    """The search that a command asks for, with what is known already; None for the other modes.

    Raises:
        UsageError: the candidates are of several jobs, or are repeated.
    """
    from orchestrator.plan.plan import Status

    study = asked.request["study"]
    if study["mode"] != ESCALATE:
        return None
    entries = [entry for entry in plan.of(Status.NEW, Status.KNOWN) if entry.repeat == 0]
    if len({entry.candidate.match_key for entry in entries}) > 1:
        raise UsageError(
            "study.mode=escalate compares recompute settings of one job, and these candidates differ in more than "
            "those: make a study of each job."
        )
    if int(study["repeats"]) > 1:
        raise UsageError("study.mode=escalate tries a candidate once: leave study.repeats at 1.")
    target, hours = study["target_gb"], study["gpu_hours"]
    known, spent = _found(asked, plan) if plan.known or hours is not None else ({}, 0.0)
    return Search(
        study=plan.study,
        candidates=[_candidate(entry) for entry in entries],
        target=None if target is None else round(float(target) * 1e9),
        hours_left=None if hours is None else float(hours) - spent,
        known=known,
    )


def next_of(search: Search) -> Decision:
    """What a driver will decide first, or the end of the search.

    Raises:
        UsageError: a candidate's memory cannot be predicted, so nothing can be decided.
    """
    from orchestrator.predict.problem import CannotPredictError

    try:
        return decide(search, {})
    except CannotPredictError as error:
        raise UsageError(f"study.mode=escalate goes by predictions, and there is none: {error}") from error


def say(study: str, decided: Sequence[Decided | Decision]) -> None:
    """Tell the user what was decided."""
    from orchestrator.report.search import decision_lines

    for line in decision_lines(study, decided):
        note(line)


def _candidate(entry: PlannedTrial) -> Searched:
    from orchestrator.plan.candidate import trial_config
    from orchestrator.plan.forecast import forecast

    ranks, hours = entry.world_size or 0, forecast(entry).hours
    return Searched(
        trial=entry.trial,
        name=entry.name,
        is_control=entry.is_control,
        world_size=ranks,
        config=trial_config(entry.request),
        effective=None if entry.effective is None else dict(entry.effective),
        seconds=None if hours is None or not ranks else hours.expected * 3600 / ranks,
    )


def _found(asked: Asked, plan: Plan) -> tuple[dict[str, Tried], float]:
    """What the known trials measured, and the GPU-hours that the study has spent."""
    from orchestrator.analysis.stored import trial_rows
    from orchestrator.store.hours import study_hours

    trials = [entry.trial for entry in plan.known if entry.label is not None]
    with writable_store(asked) as store, store.reading() as connection:
        rows = sorted(trial_rows(connection, trials), key=lambda row: row.started_at or 0.0) if trials else []
        spent = sum(one.spent for one in study_hours(connection, time.time(), plan.study))
    wanted: Mapping[str, Any] = dict.fromkeys(trials)
    return {row.trial: _tried(row) for row in rows if row.trial in wanted and row.label is not None}, spent


def _tried(row: Any) -> Tried:
    stages: dict[str, int] = {}
    for one in row.peaks:
        if one.stage is not None and one.allocated is not None:
            stages[str(one.stage)] = max(one.allocated, stages.get(str(one.stage), 0))
    peak = row.peak
    return Tried(
        label=row.label,
        peak=None if peak is None else peak.allocated,
        peak_scope=None if row.peak_scope is None else str(row.peak_scope),
        step_ms=row.step_ms,
        stages=stages,
    )
