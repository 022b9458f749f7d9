"""Batches: which planned trials share a job, in which order, with which controls. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from orchestrator.plan.candidate import Candidate, canonical, group, trial_config, trial_id
from orchestrator.plan.control import control_of
from orchestrator.plan.plan import Plan, PlannedTrial
from orchestrator.plan.subject import world_size_of
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL, Batch, BatchTrial
from orchestrator.vocabulary.units import GB

CLOSING_CONTROL_FROM = 4
"""A job with at least this many trials of one match key also ends with that key's control."""


@dataclass(frozen=True)
class Ask:
    """A trial that is to be run: what planning decided, as far as a job needs it."""

    trial: str
    candidate: Candidate
    repeat: int = 0

    @classmethod
    def of(cls, planned: PlannedTrial) -> Ask:
        """What planning decided."""
        return cls(planned.trial, planned.candidate, planned.repeat)


@dataclass(frozen=True)
class Controls:
    """What a plan says of the controls that its trials bring."""

    measured: tuple[Ask, ...] = ()
    """Controls among the study's candidates that need not run for their own sake."""
    refused: frozenset[str] = frozenset()
    """The match keys of trials that run without one, since it is refused."""

    @classmethod
    def of(cls, plan: Plan) -> Controls:
        """What this plan says."""
        measured = tuple(Ask.of(entry) for entry in plan.known if entry.is_control)
        return cls(measured, frozenset(plan.refused_controls))


NO_CONTROLS = Controls()
"""Nothing is measured, and nothing refused: each match key gets a control."""


@dataclass(frozen=True)
class BatchSettings:
    """What all batches of one command have in common."""

    study: str
    results_dir: str
    created_at: float
    launcher: dict[str, Any]
    parallel_trials: int = 1
    max_attempts: int = 1
    trials_per_batch: int | None = None
    """Trials of one job, controls not counted; None puts all of one shape into one."""
    one_batch: bool = False
    """Whether trials of different world sizes share a batch, as on a machine where they run one after the other."""
    closing_controls: bool = True
    """Whether long parts end with their control again; a search does not spend a trial on it."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The software found, which is part of the identity of an added control."""
    controls: Controls = NO_CONTROLS


def make_batches(asks: Sequence[Ask], settings: BatchSettings) -> list[Batch]:
    """Jobs for these trials: those of one world size share jobs, and each match key brings its control.

    The control opens its key's part of a job: the one that was asked for where it must run, an extra attempt of it
    where another job runs it or it has its result, and one that is added where none was asked for. It closes the part
    too where the job holds at least `CLOSING_CONTROL_FROM` trials of the key. A key whose control is refused has none.

    Raises:
        ValueError: a request has no world size or no number of iterations.
    """
    batches: list[Batch] = []
    controls = {
        ask.candidate.match_key: ask
        for ask in reversed((*settings.controls.measured, *asks))
        if ask.candidate.is_control
    }
    sizes = [0 if settings.one_batch else _world_size(ask.candidate.request) for ask in asks]
    for shape_size in dict.fromkeys(sizes):
        shape = _by_key([ask for ask, size in zip(asks, sizes, strict=True) if size == shape_size])
        size = settings.trials_per_batch or len(shape)
        for start in range(0, len(shape), size):
            trials = _with_controls(shape[start : start + size], controls, settings)
            batches.append(
                Batch(
                    batch=batch_id(settings, len(batches), trials),
                    study=settings.study,
                    created_at=settings.created_at,
                    results_dir=settings.results_dir,
                    trials=trials,
                    launcher=settings.launcher,
                    parallel_trials=settings.parallel_trials,
                    max_attempts=settings.max_attempts,
                )
            )
    return batches


def batch_id(settings: BatchSettings, index: int, trials: Sequence[BatchTrial]) -> str:
    """A batch's name: unique by its instant and content, 12 hex digits."""
    said = [settings.study, settings.created_at, settings.results_dir, index, [trial.trial for trial in trials]]
    return hashlib.sha256(canonical(said).encode()).hexdigest()[:12]


def batch_trial(ask: Ask, role: str) -> BatchTrial:
    """A trial as a batch lists it.

    Raises:
        ValueError: the request has no world size or no number of iterations.
    """
    request = ask.candidate.request
    training, trainer = group(request, "training"), group(request, "trainer")
    iterations = training.get("train_iters")
    if not isinstance(iterations, int) or isinstance(iterations, bool):
        raise ValueError(f"training.train_iters must be a whole number, not {iterations!r}")
    window = training.get("steady_window") or [min(11, iterations), iterations]
    limit = trainer.get("memory_limit_gb")
    time_limit = trainer.get("time_limit")
    environment = {**(group(request, "cluster").get("environment") or {}), **(trainer.get("environment") or {})}
    return BatchTrial(
        trial=ask.trial,
        name=ask.candidate.name,
        role=role,
        trainer=ask.candidate.trainer,
        world_size=_world_size(request),
        config=trial_config(request),
        steady_window=(int(window[0]), int(window[1])),
        train_iters=iterations,
        stall_seconds=float(trainer.get("stall_seconds") or 300.0),
        time_limit_seconds=None if time_limit is None else float(time_limit),
        memory_limit_bytes=None if limit is None else round(float(limit) * GB),
        environment={str(key): str(value) for key, value in environment.items()},
        repeat=ask.repeat,
    )


def _world_size(request: Mapping[str, Any]) -> int:
    size = world_size_of(request)
    if size is None:
        raise ValueError("parallelism.world_size must be a whole number of ranks before a trial can be run")
    return size


def _by_key(asks: Sequence[Ask]) -> list[Ask]:
    """The same trials with those of one match key next to each other, keys in the order they first appear."""
    keys = [ask.candidate.match_key for ask in asks]
    order = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    ranked = sorted(range(len(asks)), key=lambda index: (order[keys[index]], index))
    return [asks[index] for index in ranked]


def _with_controls(asks: Sequence[Ask], controls: Mapping[str, Ask], settings: BatchSettings) -> list[BatchTrial]:
    """Trials of one match key lie next to each other (`_by_key`). Those without a control come first: what stands
    behind an opening control is held against it."""
    refused = settings.controls.refused
    listed = [batch_trial(ask, ROLE_TRIAL) for ask in asks if ask.candidate.match_key in refused]
    held = [ask for ask in asks if ask.candidate.match_key not in refused]
    for key, found in groupby(held, key=lambda ask: ask.candidate.match_key):
        own = list(found)
        asked = next((ask for ask in own if ask.candidate.is_control), None)
        control = asked or controls.get(key) or _extra_control(own[0], settings)
        listed.append(batch_trial(control, ROLE_CONTROL_FIRST))
        listed += [batch_trial(ask, ROLE_TRIAL) for ask in own if ask is not asked]
        if settings.closing_controls and len(own) >= CLOSING_CONTROL_FROM:
            listed.append(batch_trial(control, ROLE_CONTROL_LAST))
    return listed


def _extra_control(ask: Ask, settings: BatchSettings) -> Ask:
    control = control_of(ask.candidate)
    return Ask(trial_id(control, 0, settings.fingerprint), control, 0)
