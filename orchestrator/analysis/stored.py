"""Reads a study's rows from the database: every attempt that speaks for its trials, and the controls of their jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.foreign import Reading, as_text
from orchestrator.analysis.held import held_back
from orchestrator.analysis.rows import (
    CUT_SHORT,
    HELD_BACK,
    NOT_RUN,
    ORIGIN_PUBLISHED,
    RUNNING,
    PeakScope,
    Row,
    StagePeak,
)
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL
from orchestrator.vocabulary import PASS, REJECTED, Stage

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping, Select

PUBLISHED = "published"
"""Key of a published trial's `target`: the source, beside what no column holds."""

_CONTROLS = (ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST)
_CHUNK = 500
_NO_SIZES = (None, None, None, None)
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
    *("device_kind", "device_name", "device_capacity", "hosts", "match_key", "software_hash", "effective_hash"),
    *("peak_allocated", "peak_allocated_rank", "peak_allocated_stage", "peak_reserved", "stage_peaks"),
    *("step_ms", "step_ms_scatter", "step_gc_ms", "tflops_per_gpu", "losses", "replays", "allocator_retries"),
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
    every = _attempts(connection, names)
    attempts = _of_the_study(every, study_id)
    attempts += _controls(connection, study_id, attempts)
    passes = _passes(every, attempts)
    rows = [
        replace(row, other_passes_ms=passes.get(row.trial, ())) if row.passed else row
        for row in _rows(connection, attempts, names, study)
    ]
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


def _passes(every: Sequence[RowMapping], kept: Sequence[RowMapping]) -> dict[str, tuple[float, ...]]:
    """By trial, the step times of its passes that are not kept, of a match key that a kept pass of it has."""
    known = {attempt["id"] for attempt in kept}
    keys = {(attempt["trial_id"], attempt["match_key"]) for attempt in kept if attempt["label"] == PASS}
    found: dict[str, tuple[float, ...]] = {}
    for attempt in every:
        alike = (attempt["trial_id"], attempt["match_key"]) in keys and attempt["id"] not in known
        if alike and attempt["label"] == PASS and isinstance(attempt["step_ms"], float):
            found[attempt["trial_id"]] = (*found.get(attempt["trial_id"], ()), attempt["step_ms"])
    return found


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
    read = Reading()
    spec, target = read.mapping(found["spec"], "what its ranks were given"), read.mapping(found["target"], "its target")
    published = read.mapping(target.get(PUBLISHED), "its source") if found["origin"] == ORIGIN_PUBLISHED else None
    window = (read.whole(found["steady_first"], "steady_first"), read.whole(found["steady_last"], "steady_last"))
    environment = read.mapping(spec.get("environment") or target.get("environment"), "its environment")
    outcome = published.get("outcome") if published else _unfinished(found)
    row = Row(
        trial=found["trial_id"],
        attempt=read.text(found["number"], "the attempt's number"),
        name=name,
        requested=read.request(found["requested"]),
        study=study,
        origin=str(found["origin"]),
        role=str(found["role"]),
        repeat=read.whole(found["repeat"], "repeat") or 0,
        batch=found["batch_id"],
        started_at=read.number(found["started_at"], "started_at"),
        effective=None if effective is None else read.mapping(effective, "the effective configuration") or None,
        software=read.mapping(software, "its software"),
        environment={str(name): str(value) for name, value in environment.items()},
        device_kind=read.text(found["device_kind"], "device_kind"),
        device_name=read.text(found["device_name"], "device_name"),
        device_capacity=read.whole(found["device_capacity"], "device_capacity"),
        memory_limit=read.whole(spec.get("memory_limit_bytes"), "memory_limit_bytes"),
        world_size=read.whole(found["world_size"], "world_size"),
        ranks_reported=read.whole(found["ranks_recorded"], "ranks_recorded"),
        steady_window=(window[0], window[1]) if window[0] is not None and window[1] is not None else None,
        train_iters=read.whole(found["train_iters"], "train_iters"),
        label=read.text(found["label"], "label"),
        outcome_text=read.text(outcome, "outcome"),
        cause=read.text(found["cause"], "cause"),
        stage=_stage(found["stage"]),
        rank=read.whole(found["rank"], "rank"),
        last_iteration=read.whole(found["iteration"], "iteration"),
        evidence=tuple(as_text(line) for line in read.listed(found["evidence"], "evidence")),
        peak_scope=_scope(found, published),
        peaks=_peaks(found, read),
        step_ms=read.number(found["step_ms"], "step_ms"),
        step_scatter_ms=read.number(found["step_ms_scatter"], "step_ms_scatter"),
        step_gc_ms=read.number(found["step_gc_ms"], "step_gc_ms"),
        tflops_per_gpu=read.number(found["tflops_per_gpu"], "tflops_per_gpu"),
        hosts=tuple(as_text(host) for host in read.listed(found["hosts"], "hosts")),
        losses=_losses(read.listed(found["losses"], "losses")),
        replays=read.whole(found["replays"], "replays"),
        allocator_retries=read.whole(found["allocator_retries"], "allocator_retries"),
        notes=tuple(as_text(note) for note in read.listed(found["notes"], "notes")),
        source=read.mapping(published.get("source"), "its source") if published else {},
    )
    return replace(row, left_out=tuple(read.notes)) if read.notes else row


def _unfinished(found: RowMapping) -> str | None:
    """What became of an attempt without a label, in words."""
    if found["state"] == "running":
        return RUNNING
    return CUT_SHORT if found["label"] is None and found["state"] == "ended" else None


def _losses(pairs: Sequence[Any]) -> dict[int, float]:
    """By iteration; one that is not finite is stored by its name, and left out."""
    return {
        pair[0]: pair[1]
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int) and isinstance(pair[1], (int, float))
    }


def _without_attempt(connection: Connection, waiting: Mapping[str, Any], study: str) -> list[Row]:
    from sqlalchemy import select

    from orchestrator.store.models import Trial

    rows, held = [], held_back(connection, waiting)
    for chunk in _chunks(sorted(waiting)):
        for trial in connection.execute(
            select(Trial.id, Trial.requested, Trial.origin, Trial.repeat, Trial.world_size).where(Trial.id.in_(chunk))
        ):
            entry, read = waiting[trial.id], Reading()
            rejected = entry.status == REJECTED
            rows.append(
                Row(
                    trial=trial.id,
                    attempt=None,
                    name=entry.name,
                    requested=read.request(trial.requested),
                    study=study,
                    origin=trial.origin,
                    role=ROLE_TRIAL,
                    repeat=trial.repeat,
                    world_size=trial.world_size,
                    label=REJECTED if rejected else None,
                    outcome_text=None if rejected else HELD_BACK if trial.id in held else NOT_RUN,
                    evidence=tuple(as_text(reason) for reason in read.listed(entry.reasons, "reasons")),
                    left_out=tuple(read.notes),
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


def _peaks(found: RowMapping, read: Reading) -> tuple[StagePeak, ...]:
    peaks = []
    for stage, sizes in sorted(read.mapping(found["stage_peaks"], "stage_peaks").items()):
        allocated, rank, reserved, reserved_rank = (
            read.whole(size, f"a peak of {stage}")
            for size in [*read.listed(sizes, f"peaks of {stage}"), *_NO_SIZES][:4]
        )
        peaks.append(StagePeak(rank, _stage(stage), allocated, reserved, reserved_rank))
    whole = read.whole(found["peak_allocated"], "peak_allocated")
    if peaks or whole is None:
        return tuple(peaks)
    rank, reserved = (read.whole(found[name], name) for name in ("peak_allocated_rank", "peak_reserved"))
    return (StagePeak(rank, _stage(found["peak_allocated_stage"]), whole, reserved),)


def _scope(found: RowMapping, published: Mapping[str, Any] | None) -> PeakScope | None:
    if published is not None:
        said = published.get("peak_scope")
        return next((scope for scope in PeakScope if scope == said), PeakScope.ONE_RANK) if said else None
    recorded, ranks = found["ranks_recorded"], found["world_size"]
    if not recorded:
        return None
    whole = isinstance(recorded, int) and isinstance(ranks, int) and recorded >= ranks
    return PeakScope.ALL_RANKS if whole else PeakScope.ONE_RANK


def _stage(name: str | None) -> Stage | None:
    if name is None:
        return None
    try:
        return Stage(name)
    except ValueError:
        return Stage.UNKNOWN  # of a newer release


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))
