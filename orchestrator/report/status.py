"""How far studies are, for a person."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.records import layout
from orchestrator.records.beacon import BeaconReader
from orchestrator.records.jsonfile import FormatError
from orchestrator.report.table import Column, Table
from orchestrator.report.text import plain
from orchestrator.store.overview import (
    ENDED,
    LEFT_OUT,
    PENDING,
    PLANNED,
    REJECTED,
    UNFINISHED,
    RunningTrial,
    StudyProgress,
    TrialLine,
    WaitingTrial,
)
from orchestrator.store.problem import Problem
from orchestrator.vocabulary import PASS
from orchestrator.vocabulary.units import format_bytes

_WAITING_SHOWN = 8
HELD = "held back"
_WHY_HELD = "as a control and a trial before failed alike before their first forward (`diagnose` says why)"
_PROBLEMS_SHOWN = 10
_ID_SHOWN = 12


@dataclass(frozen=True)
class Whereabouts:
    """Where the ranks of a running trial are, by their beacons on this machine."""

    iteration: int | None = None
    """Of the rank that is behind; None where no beacon can be read here."""
    stages: dict[str, int] = field(default_factory=dict)
    """Ranks by stage."""
    silent_seconds: float | None = None
    """Since the latest sign of any rank."""


def whereabouts(trial: RunningTrial, now: float) -> Whereabouts:
    """Read the beacons of a trial, as far as they lie on this machine and belong to this user."""
    if trial.beacon_dir is None:
        return Whereabouts()
    folder = Path(trial.beacon_dir)
    places = []
    try:
        layout.check_private(folder)
        for rank in range(trial.world_size):
            path = layout.beacon_file(folder, rank)
            if path.exists():
                places.append(BeaconReader(path).last)
    except (OSError, FormatError):
        return Whereabouts()
    if not places:
        return Whereabouts()
    stages = Counter(str(place.stage) for place in places)
    return Whereabouts(
        iteration=min(place.iteration for place in places),
        stages=dict(stages.most_common()),
        silent_seconds=max(0.0, now - max(place.at for place in places)),
    )


def studies_table(studies: Sequence[StudyProgress]) -> Table:
    """One row a study."""
    states = (REJECTED, "running", PENDING, PLANNED, LEFT_OUT, UNFINISHED)
    columns = ("study", "trials", "pass", "OOM", "failed", *states, "no-outcome")
    rows = []
    for study in studies:
        oom = sum(count for label, count in study.labels.items() if label.startswith("OOM-"))
        failed = study.states.get(ENDED, 0) - study.labels.get(PASS, 0) - oom
        counts = [
            study.trials,
            study.labels.get(PASS, 0),
            oom,
            failed,
            *(study.states.get(state, 0) for state in states),
        ]
        # Whatever has no column of its own, so that the columns add up: published rows without an outcome, say.
        counts.append(study.trials - sum(counts[1:]))
        rows.append((plain(study.name), *(str(count) if count else "-" for count in counts)))
    # Counts that are nowhere above zero need no column on a terminal.
    headers = [Column(name, right=place > 0, spare=max(0, place - 3)) for place, name in enumerate(columns)]
    return Table("", tuple(headers), tuple(rows))


def running_lines(trials: Sequence[RunningTrial], now: float) -> list[str]:
    """One line a running trial."""
    lines = []
    for trial in trials:
        place = whereabouts(trial, now)
        lines.append(f"running  {plain(trial.study)}  {plain(trial.name)}  {_where(trial, place)}{_since(trial, now)}")
    return lines


def waiting_lines(trials: Sequence[WaitingTrial], held: Collection[str] = frozenset()) -> list[str]:
    """The trials that come, the first few by name; apart, those that a driver held back."""
    lines = []
    for state, one, several in (
        (HELD, f"was not started, {_WHY_HELD}", f"were not started, {_WHY_HELD}"),
        (PENDING, "waits in a job", "wait in a job"),
        (
            UNFINISHED,
            "was cut short: the same command runs it again",
            "were cut short: the same command runs them again",
        ),
        (PLANNED, "is in no job: the same command runs it", "are in no job: the same command runs them"),
    ):
        names = [plain(trial.name) for trial in trials if (HELD if trial.trial in held else trial.state) == state]
        if names:
            meaning = one if len(names) == 1 else several
            more = f" and {len(names) - _WAITING_SHOWN} more" if len(names) > _WAITING_SHOWN else ""
            lines.append(f"{state}  {len(names)} {meaning}: {', '.join(names[:_WAITING_SHOWN])}{more}")
    return lines


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """Files that could not be collected, the first few with the reason."""
    lines = [f"not collected: {plain(problem.message)}" for problem in problems[:_PROBLEMS_SHOWN]]
    more = len(problems) - _PROBLEMS_SHOWN
    if more > 0:
        lines.append(f"not collected: {more} more; `collect --json` lists them all")
    return lines


def trials_table(trials: Sequence[TrialLine]) -> Table:
    """One row a trial of a study, in the order that it was asked in."""
    columns = (
        Column("trial"),
        Column("name", wrap=True),
        Column("outcome"),
        Column("iteration", right=True),
        Column("allocated", right=True),
        Column("rank", right=True),
        Column("stage"),
        Column("step ms", right=True),
    )
    rows = [
        (
            plain(trial.trial[:_ID_SHOWN]),
            plain(trial.name),
            plain(trial.label or trial.state),
            plain(trial.iteration),
            format_bytes(trial.peak_allocated),
            plain(trial.peak_allocated_rank),
            plain(trial.peak_allocated_stage),
            "-" if trial.step_ms is None else f"{trial.step_ms:.1f}",
        )
        for trial in trials
    ]
    return Table("", columns, tuple(rows))


def _where(trial: RunningTrial, place: Whereabouts) -> str:
    if place.iteration is None:
        return "started"
    of = f"/{trial.train_iters}" if trial.train_iters else ""
    stages = ", ".join(f"{stage} x{count}" if len(place.stages) > 1 else stage for stage, count in place.stages.items())
    quiet = place.silent_seconds or 0.0
    still = f" (no sign for {quiet:.0f} s)" if quiet > 60 else ""
    return f"iteration {place.iteration}{of}, {stages}{still}"


def _since(trial: RunningTrial, now: float) -> str:
    if trial.started_at is None:
        return ""
    return f"  {time.strftime('%H:%M:%S', time.gmtime(max(0.0, now - trial.started_at)))}"
