"""Predictions that were made before a run, held against what the run measured. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from orchestrator.predict.memory import Prediction
from orchestrator.predict.verdict import Range
from orchestrator.vocabulary import Stage

WHOLE = "all stages"
"""The stage of an error in the largest peak, where no stage was measured by itself."""
SETUP = "set-up"
"""The stages before the first forward: a prediction has one figure for them, kept as `model_build`."""
_SETUP_STAGES = tuple(map(str, (Stage.MODEL_BUILD, Stage.OPTIMIZER_BUILD, Stage.DATA_BUILD)))


@dataclass(frozen=True)
class Made:
    """One prediction as it is kept, bytes: the largest peak is the hottest rank's, each stage's is of the rank that is
    the hottest in it."""

    trial: str
    name: str
    model: str
    labels: str
    """What it recomputes, as a person writes it."""
    revision: str
    """Of the frameworks that the ledger follows, and of this package."""
    made_at: float
    peak: int
    low: int
    high: int
    stages: dict[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    schema: int = 2
    """1: stages were those of the rank with the largest peak, which another rank may exceed in a stage."""


@dataclass(frozen=True)
class Outcome:
    """What a trial measured: peaks by stage, bytes, each of the rank that is the hottest in it, and its largest."""

    trial: str
    peak: int | None
    stages: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Error:
    """One prediction against one measurement."""

    made: Made
    stage: str
    predicted: int
    measured: int

    @property
    def share(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measurement lay in the stated range; asked of the largest peak alone."""
        return self.made.low <= self.measured <= self.made.high


@dataclass(frozen=True)
class Summary:
    """Errors of one model, stage, set of labels and revision."""

    model: str
    stage: str
    labels: str
    revision: str
    count: int
    mean_share: float
    worst_share: float
    """The one farthest from zero."""
    inside: int
    """How many measurements lay in the stated range."""


def made_of(
    prediction: Prediction,
    spread: Range,
    *,
    trial: str,
    name: str,
    model: str,
    labels: str,
    revision: str,
    made_at: float,
    assumed: Sequence[str] = (),
) -> Made:
    """A prediction as it is kept."""
    stages: dict[str, int] = {}
    for rank in prediction.ranks:
        for peaks in (rank.first, rank.steady):
            for stage, size in peaks.items():
                stages[str(stage)] = max(size, stages.get(str(stage), 0))
    return Made(
        trial, name, model, labels, revision, made_at, spread.expected, spread.low, spread.high, stages, tuple(assumed)
    )


def errors_of(made: Iterable[Made], outcomes: Iterable[Outcome]) -> list[Error]:
    """Every prediction against its trial's measurement: the largest peak, and each stage that both have, the hottest
    rank in it against the hottest. Predictions that an earlier release kept are held against the largest peak alone."""
    by_trial = {outcome.trial: outcome for outcome in outcomes}
    found = []
    for one in made:
        outcome = by_trial.get(one.trial)
        if outcome is None:
            continue
        if outcome.peak:
            found.append(Error(one, WHOLE, one.peak, outcome.peak))
        if one.schema < Made.schema:
            continue
        predicted, measured = _setup_together(one.stages), _setup_together(outcome.stages)
        if Stage.OPTIMIZER_BUILD not in outcome.stages:
            measured.pop(SETUP, None)  # it stopped before the highest
        for stage in sorted(predicted.keys() & measured.keys(), key=_position):
            if measured[stage]:
                found.append(Error(one, stage, predicted[stage], measured[stage]))
    return found


def _setup_together(stages: Mapping[str, int]) -> dict[str, int]:
    """Peaks by stage, with the highest of set-up in place of its stages."""
    setup = [stages[stage] for stage in _SETUP_STAGES if stage in stages]
    others = {stage: size for stage, size in stages.items() if stage not in _SETUP_STAGES}
    return {SETUP: max(setup), **others} if setup else others


def summarise(errors: Iterable[Error]) -> list[Summary]:
    """Errors by model, stage, labels and revision; the largest mean first."""
    groups: dict[tuple[str, str, str, str], list[Error]] = defaultdict(list)
    for error in errors:
        groups[(error.made.model, error.stage, error.made.labels, error.made.revision)].append(error)
    found = []
    for (model, stage, labels, revision), members in groups.items():
        shares = [error.share for error in members]
        found.append(
            Summary(
                model,
                stage,
                labels,
                revision,
                len(members),
                mean(shares),
                max(shares, key=abs),
                sum(error.inside for error in members),
            )
        )
    return sorted(found, key=lambda one: (-abs(one.mean_share), one.model, one.stage, one.labels, one.revision))


def overall(errors: Iterable[Error]) -> list[Summary]:
    """Errors by model, stage and revision, whatever was recomputed; stages in their order."""
    together = [replace(error, made=replace(error.made, labels="all")) for error in errors]
    return sorted(summarise(together), key=lambda one: (one.model, one.revision, _position(one.stage)))


def _position(stage: str) -> int:
    if stage == SETUP:
        return -1
    try:
        return list(Stage).index(Stage(stage))
    except ValueError:
        return len(Stage)
