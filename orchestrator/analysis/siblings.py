"""What earlier runs of the same job teach a prediction: its effective configuration, and what its control measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.plan.candidate import normalise
from orchestrator.predict.calibrate import Calibration, calibrate
from orchestrator.predict.job import SELECTIVE, Job, Recompute
from orchestrator.predict.memory import predict_memory
from orchestrator.vocabulary import PASS, Stage

if TYPE_CHECKING:
    from sqlalchemy import Connection

_RECOMPUTE = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")


@dataclass(frozen=True)
class Sibling:
    """Runs that differ from a request in what they recompute alone. Absent is None."""

    effective: Mapping[str, Any] | None = None
    """The configuration after the framework finished it, of the newest."""
    control_peak: int | None = None
    """Bytes; of the newest control that passed."""
    control_stages: Mapping[Stage, int] = field(default_factory=dict)
    control_step_ms: float | None = None
    match_key: str | None = None


def find_siblings(connection: Connection, requests: list[Mapping[str, Any]]) -> list[Sibling]:
    """For each request what its siblings in the database say; nothing where there are none."""
    from sqlalchemy import select

    from orchestrator.store.models import ORIGIN_PUBLISHED, Attempt, Effective, Software, Trial

    query = (
        select(
            Trial.requested, Trial.is_control, Attempt.label, Attempt.peak_allocated, Attempt.stage_peaks,
            Attempt.step_ms, Attempt.match_key, Attempt.effective_hash, Attempt.software_hash,
        )
        .join(Attempt, Attempt.trial_id == Trial.id)
        .where(Attempt.effective_hash.is_not(None), Attempt.decides, Trial.origin != ORIGIN_PUBLISHED)
        .order_by(Attempt.started_at.desc())
    )  # fmt: skip
    by_job: dict[str, Sibling] = {}
    hashes: dict[str, str] = {}
    engines: dict[str, str | None] = {}
    for row in connection.execute(query):
        job = _job_key(row.requested)
        known = by_job.setdefault(job, Sibling(match_key=row.match_key))
        hashes.setdefault(job, row.effective_hash)
        engines.setdefault(job, row.software_hash)
        if known.control_peak is None and row.is_control and row.label == PASS and row.match_key == known.match_key:
            by_job[job] = replace(
                known,
                control_peak=row.peak_allocated,
                control_stages=_stages(row.stage_peaks),
                control_step_ms=row.step_ms,
            )
    asked = [_job_key(request) for request in requests]
    needed = {hashes[job] for job in asked if job in hashes}
    contents: dict[str, Any] = {}
    if needed:
        stored = connection.execute(select(Effective.hash, Effective.content).where(Effective.hash.in_(needed)))
        contents = {row.hash: row.content for row in stored}
    used = {engines[job] for job in asked if job in engines}
    ran = connection.execute(select(Software.hash, Software.content).where(Software.hash.in_(used))) if needed else ()
    software = {row.hash: row.content for row in ran}

    def effective_of(job: str) -> Mapping[str, Any] | None:
        content = contents.get(hashes[job])
        return None if content is None else {**content, "software": software.get(engines[job]) or {}}

    return [replace(by_job[job], effective=effective_of(job)) if job in by_job else Sibling() for job in asked]


def calibration_of(job: Job, sibling: Sibling) -> Calibration | None:
    """What the measured control teaches a candidate of the same job; None where none was measured."""
    if sibling.control_peak is None:
        return None
    control = replace(job, recompute=Recompute(SELECTIVE))
    hottest = predict_memory(control).hottest
    return calibrate(hottest, peak=sibling.control_peak, stages=sibling.control_stages)


def _job_key(request: Mapping[str, Any]) -> str:
    """A request without what it recomputes, as text."""
    from orchestrator.plan.candidate import canonical

    plain = {key: value for key, value in request.items() if key not in _RECOMPUTE}
    return canonical(normalise({**plain, **dict.fromkeys(_RECOMPUTE)}))


def _stages(peaks: Mapping[str, Any] | None) -> dict[Stage, int]:
    found = {}
    for name, values in (peaks or {}).items():
        if isinstance(values, (list, tuple)) and values and isinstance(values[0], int):
            found[Stage(name)] = values[0]
    return found
