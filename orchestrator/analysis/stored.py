"""Reads a study's rows from the database: every attempt that speaks for its trials, and the controls of their jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope, Row, StagePeak
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL
from orchestrator.vocabulary import REJECTED, Stage

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping, Select

PUBLISHED = "published"
"""Key of a published trial's `target`: the source, beside what no column holds."""

_CONTROLS = (ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST)
_CHUNK = 500
_COLUMNS = (
    *(
        "id",
        "number",
        "batch_id",
        "study_id",
        "decides",
        "name",
        "role",
        "state",
        "started_at",
        "spec",
        "ranks_recorded",
    ),
    *("label", "cause", "stage", "rank", "iteration", "evidence", "notes"),
    *("device_kind", "device_name", "device_capacity", "software_hash", "effective_hash"),
    *("peak_allocated", "peak_allocated_rank", "peak_allocated_stage", "peak_reserved", "stage_peaks"),
    *("step_ms", "step_ms_scatter", "tflops_per_gpu", "losses", "replays", "allocator_retries"),
)


def study_rows(connection: Connection, study: str) -> list[Row]:
    """The rows of a study by name; empty where it has none. Trials that did not run yet have a row without attempt."""
    from sqlalchemy import select

    from orchestrator.store.models import Study, StudyTrial

    asked = connection.execute(
        select(StudyTrial.trial_id, StudyTrial.name, StudyTrial.status, StudyTrial.reasons, StudyTrial.role, Study.id)
        .join(Study, Study.id == StudyTrial.study_id)
        .where(Study.name == study)
    ).all()
    names = {entry.trial_id: entry.name for entry in asked}
    study_id = asked[0].id if asked else None
    attempts = _of_the_study(_attempts(connection, names), study_id)
    attempts += _controls(connection, study_id, attempts)
    rows = _rows(connection, attempts, names, study)
    seen = {row.trial for row in rows}
    waiting = {entry.trial_id: entry for entry in asked if entry.trial_id not in seen}
    return rows + _without_attempt(connection, waiting, study)


def trial_rows(connection: Connection, trials: Sequence[str]) -> list[Row]:
    """The rows of trials by their ids, with the controls of the jobs that they ran in."""
    names = dict.fromkeys(trials, "")
    attempts = _attempts(connection, names)
    attempts += _controls(connection, None, attempts)
    return _rows(connection, attempts, names, "")


def _attempts(connection: Connection, trials: Iterable[str]) -> list[RowMapping]:
    from orchestrator.store.models import Attempt

    found: list[RowMapping] = []
    for chunk in _chunks(sorted(trials)):
        found += connection.execute(_select_attempts().where(Attempt.trial_id.in_(chunk))).mappings()
    return found


def _of_the_study(attempts: Sequence[RowMapping], study: int | None) -> list[RowMapping]:
    """Without the control attempts that opened or closed jobs of other studies: they are no repeats of this one's.

    A control that ran only there is kept as the one attempt that speaks for its trial.
    """
    jobs = {attempt["batch_id"] for attempt in attempts if attempt["role"] not in _CONTROLS}
    kept = [
        attempt
        for attempt in attempts
        if attempt["role"] not in _CONTROLS or attempt["study_id"] == study or attempt["batch_id"] in jobs
    ]
    present = {attempt["trial_id"] for attempt in kept}
    return kept + [attempt for attempt in attempts if attempt["decides"] and attempt["trial_id"] not in present]


def _controls(connection: Connection, study: int | None, attempts: Sequence[RowMapping]) -> list[RowMapping]:
    """Control attempts of the jobs of `attempts`, and of the study, that are not among them."""
    from orchestrator.store.models import Attempt

    known = {attempt["id"] for attempt in attempts}
    controls = _select_attempts().where(Attempt.role.in_(_CONTROLS))
    found: dict[int, RowMapping] = {}
    for chunk in _chunks(sorted({attempt["batch_id"] for attempt in attempts if attempt["batch_id"]})):
        for row in connection.execute(controls.where(Attempt.batch_id.in_(chunk))).mappings():
            found[row["id"]] = row
    if study is not None:
        for row in connection.execute(controls.where(Attempt.study_id == study)).mappings():
            found[row["id"]] = row
    return [row for number, row in sorted(found.items()) if number not in known]


def _select_attempts() -> Select[Any]:
    from sqlalchemy import select

    from orchestrator.store.models import Attempt, Trial

    columns = [getattr(Attempt, name) for name in _COLUMNS]
    of_trial = [Trial.requested, Trial.target, Trial.world_size, Trial.repeat, Trial.origin, Trial.trainer]
    window = [Trial.steady_first, Trial.steady_last, Trial.train_iters]
    return select(Trial.id.label("trial_id"), *of_trial, *window, *columns).join(Attempt, Attempt.trial_id == Trial.id)


def _rows(connection: Connection, attempts: Sequence[RowMapping], names: Mapping[str, str], study: str) -> list[Row]:
    from orchestrator.store.models import Effective, Software

    effective = _contents(connection, Effective, {attempt["effective_hash"] for attempt in attempts})
    software = _contents(connection, Software, {attempt["software_hash"] for attempt in attempts})
    return [
        _row(
            attempt,
            name=names.get(attempt["trial_id"]) or attempt["name"],
            study=study,
            effective=effective.get(attempt["effective_hash"]),
            software=software.get(attempt["software_hash"], {}),
        )
        for attempt in attempts
    ]


def _row(
    found: RowMapping,
    *,
    name: str,
    study: str,
    effective: Mapping[str, Any] | None,
    software: Mapping[str, Any],
) -> Row:
    spec = found["spec"] or {}
    target = found["target"] or {}
    published = target.get(PUBLISHED) if found["origin"] == ORIGIN_PUBLISHED else None
    window = (found["steady_first"], found["steady_last"])
    return Row(
        trial=found["trial_id"],
        attempt=found["number"],
        name=name,
        requested=found["requested"],
        study=study,
        origin=found["origin"],
        role=found["role"],
        repeat=found["repeat"],
        batch=found["batch_id"],
        started_at=found["started_at"],
        effective=effective,
        software=software,
        environment=spec.get("environment") or target.get("environment") or {},
        device_kind=found["device_kind"],
        device_name=found["device_name"],
        device_capacity=found["device_capacity"],
        memory_limit=spec.get("memory_limit_bytes"),
        world_size=found["world_size"],
        ranks_reported=found["ranks_recorded"],
        steady_window=window if None not in window else None,
        train_iters=found["train_iters"],
        label=found["label"],
        outcome_text=published.get("outcome") if published else "running" if found["state"] == "running" else None,
        cause=found["cause"],
        stage=_stage(found["stage"]),
        rank=found["rank"],
        last_iteration=found["iteration"],
        evidence=tuple(str(line) for line in found["evidence"] or ()),
        peak_scope=_scope(found, published),
        peaks=_peaks(found),
        step_ms=found["step_ms"],
        step_scatter_ms=found["step_ms_scatter"],
        tflops_per_gpu=found["tflops_per_gpu"],
        losses={number: loss for number, loss in found["losses"] or () if isinstance(loss, (int, float))},
        replays=found["replays"],
        allocator_retries=found["allocator_retries"],
        notes=tuple(str(note) for note in found["notes"] or ()),
        source=published.get("source", {}) if published else {},
    )


def _without_attempt(connection: Connection, waiting: Mapping[str, Any], study: str) -> list[Row]:
    from sqlalchemy import select

    from orchestrator.store.models import Trial

    rows = []
    for chunk in _chunks(sorted(waiting)):
        for trial in connection.execute(
            select(Trial.id, Trial.requested, Trial.origin, Trial.repeat, Trial.world_size).where(Trial.id.in_(chunk))
        ):
            entry = waiting[trial.id]
            rejected = entry.status == REJECTED
            rows.append(
                Row(
                    trial=trial.id,
                    attempt=None,
                    name=entry.name,
                    requested=trial.requested,
                    study=study,
                    origin=trial.origin,
                    role=ROLE_TRIAL,
                    repeat=trial.repeat,
                    world_size=trial.world_size,
                    label=REJECTED if rejected else None,
                    outcome_text=None if rejected else "not run yet",
                    evidence=tuple(str(reason) for reason in entry.reasons or ()),
                )
            )
    return rows


def _contents(connection: Connection, table: Any, hashes: Iterable[str | None]) -> dict[str | None, Mapping[str, Any]]:
    from sqlalchemy import select

    found: dict[str | None, Mapping[str, Any]] = {}
    for chunk in _chunks(sorted(key for key in hashes if key)):
        for key, content in connection.execute(select(table.hash, table.content).where(table.hash.in_(chunk))):
            found[key] = content
    return found


def _peaks(found: RowMapping) -> tuple[StagePeak, ...]:
    by_stage: Mapping[str, Sequence[int | None]] = found["stage_peaks"] or {}
    peaks = tuple(
        StagePeak(rank=rank, stage=_stage(stage), allocated=allocated, reserved=reserved, reserved_rank=reserved_rank)
        for stage, (allocated, rank, reserved, reserved_rank) in sorted(by_stage.items())
    )
    if peaks or found["peak_allocated"] is None:
        return peaks
    stage = _stage(found["peak_allocated_stage"])
    whole = StagePeak(found["peak_allocated_rank"], stage, found["peak_allocated"], found["peak_reserved"])
    return (whole,)


def _scope(found: RowMapping, published: Mapping[str, Any] | None) -> PeakScope | None:
    if published is not None:
        said = published.get("peak_scope")
        return PeakScope(said) if said else None
    if not found["ranks_recorded"]:
        return None
    return PeakScope.ALL_RANKS if found["ranks_recorded"] >= found["world_size"] else PeakScope.ONE_RANK


def _stage(name: str | None) -> Stage | None:
    if name is None:
        return None
    try:
        return Stage(name)
    except ValueError:
        return Stage.UNKNOWN  # of a newer release


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))
