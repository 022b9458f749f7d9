"""The guide's table: candidates of one match key, against their control."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from orchestrator.analysis import noise
from orchestrator.analysis.candidates import Candidate, rewritten, runs_by_candidate
from orchestrator.analysis.loss_drift import loss_drift
from orchestrator.analysis.match import join, match_key
from orchestrator.analysis.noise import NoiseBand
from orchestrator.analysis.rows import CUT_SHORT, ORIGIN_PUBLISHED, PeakScope, Row, StagePeak
from orchestrator.records.spec import ROLE_CONTROL_LAST
from orchestrator.select.match import Difference, MatchKey, differences
from orchestrator.vocabulary import Stage

_Pair = tuple[Row, list[Row], bool]
"""A run, the controls that it is held against, and whether they ran in another job."""
_Recomputes = tuple[tuple[tuple[str, Any], ...], frozenset[str]]
"""What a selective candidate offloads, and its labels."""


@dataclass(frozen=True)
class Delta:
    """A change against the control, as a fraction of it."""

    fraction: float
    band: NoiseBand | None = None
    other_nodes: bool = False
    """The control ran in another job, so perhaps on other nodes."""
    other_hosts: bool = False
    """It did run on other nodes."""

    @property
    def measurable(self) -> bool:
        """False inside the noise band; without a known band every change counts."""
        return self.band is None or not self.band.holds(self.fraction)


@dataclass(frozen=True)
class OneLabel:
    """This line recomputes exactly one label more than another line."""

    base: str
    label: str
    peak: Delta | None
    """Change of the peak against that line; None where one of them did not pass."""
    time: Delta | None


@dataclass(frozen=True)
class Line:
    """One candidate: largest peak and median time of its passing repeats, or what is known of the failed ones."""

    candidate: Candidate
    runs: tuple[Row, ...]
    passed: int
    label: str | None
    """`pass` only where every repeat passed; else the first other label."""
    peak: StagePeak | None
    """The hot rank and stage of the run with the largest peak: what a memory target must hold."""
    peak_scope: PeakScope | None
    reserved: int | None
    forward_peak: int | None
    """Largest forward peak: what recompute acts on, also where another stage sets the peak."""
    step_ms: float | None
    tflops_per_gpu: float | None
    scatter: float | None
    """Of the step time within one run's window (median of the runs), as a fraction."""
    peak_delta: Delta | None = None
    time_delta: Delta | None = None
    loss_difference: float | None = None
    """Largest relative difference from the control's loss at the same iteration."""
    one_label: tuple[OneLabel, ...] = ()
    by_request: bool = False
    """No run got as far as an effective configuration: it stands here for what it asked."""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.runs[0].name if self.runs[0].origin == ORIGIN_PUBLISHED else self.candidate.text

    @property
    def is_control(self) -> bool:
        return self.candidate.is_control

    @property
    def decided(self) -> Row:
        """The run that label, stage, rank and last iteration are read from: of those alike, the one with the peak."""
        return max((row for row in self.runs if row.label == self.label), key=_peak_bytes, default=self.runs[0])


@dataclass(frozen=True)
class Group:
    """The lines of one match key."""

    digest: str
    key: MatchKey
    lines: tuple[Line, ...]
    lost_closings: tuple[Row, ...] = ()
    """Controls that were to close a job, and ended without a result."""

    @property
    def control(self) -> Line | None:
        return next((line for line in self.lines if line.is_control), None)

    @cached_property
    def named(self) -> Mapping[str, Line]:
        """The lines by what a person calls them."""
        return {line.text: line for line in reversed(self.lines)}

    @property
    def first_row(self) -> Row:
        return self.lines[0].runs[0]


@dataclass(frozen=True)
class Comparison:
    """All groups, and the fields in which they differ from each other."""

    groups: tuple[Group, ...]
    differences: tuple[Difference, ...] = ()


def compare(rows: Sequence[Row], *, deltas: bool = True) -> Comparison:
    """Rows by match key and candidate. Pure; the order of `rows` changes nothing.

    `deltas=False` leaves every delta out: for rows that are shown side by side although they do not match.
    """
    groups = []
    for digest, members in join(rows).items():
        lines = [_line(candidate, runs) for candidate, runs in runs_by_candidate(members).items()]
        if deltas:
            lines = _with_deltas(lines)
        lines.sort(key=_line_order)
        representative = min(members, key=lambda row: (row.effective is None, row.trial, row.attempt or ""))
        groups.append(Group(digest, match_key(representative), tuple(lines), _lost_closings(members)))
    groups.sort(key=lambda group: (group.first_row.origin, group.first_row.study, group.digest))
    # What was asked for and what the framework finished have other fields: each differs among its own kind only.
    kinds = [[group.key for group in groups if group.key.by_request is asked] for asked in (False, True)]
    return Comparison(tuple(groups), tuple(item for keys in kinds for item in differences(keys)))


def _lost_closings(rows: Sequence[Row]) -> tuple[Row, ...]:
    lost = [
        row for row in rows if row.role == ROLE_CONTROL_LAST and row.outcome_text == CUT_SHORT and row.label is None
    ]
    return tuple(sorted(lost, key=lambda row: (row.started_at or 0.0, row.trial, row.attempt or "")))


def _line(candidate: Candidate, runs: Sequence[Row]) -> Line:
    passing = [row for row in runs if row.passed]
    counted = passing or list(runs)
    hottest = max((row for row in counted if row.peak), key=_peak_bytes, default=None)
    timed = [row for row in runs if row.passed or row.origin == ORIGIN_PUBLISHED]
    times = [row.step_ms for row in timed if row.step_ms is not None]
    tflops = [row.tflops_per_gpu for row in timed if row.tflops_per_gpu is not None]
    scatters = [value for row in passing if (value := _window_scatter(row)) is not None]
    scopes = {row.peak_scope for row in counted if row.peak_scope is not None}
    reserved = [row.reserved for row in counted if row.reserved is not None]
    forward = [peak.allocated for row in counted if (peak := row.peak_in(_FORWARD)) and peak.allocated is not None]
    others = [row.label for row in runs if not row.passed]
    return Line(
        candidate=candidate,
        runs=tuple(runs),
        passed=len(passing),
        label=others[0] if others else runs[0].label,
        peak=hottest.peak if hottest else None,
        peak_scope=max(scopes, key=_narrowness) if scopes else None,
        reserved=max(reserved, default=None),
        forward_peak=max(forward, default=None),
        step_ms=statistics.median(times) if times else None,
        tflops_per_gpu=statistics.median(tflops) if tflops else None,
        scatter=statistics.median(scatters) if scatters else None,
        by_request=all(match_key(row).by_request for row in runs),
        notes=tuple(
            dict.fromkeys(note for row in runs for note in (rewritten(row), *row.left_out) if note is not None)
        ),
    )


def _with_deltas(lines: list[Line]) -> list[Line]:
    controls = [row for line in lines if line.is_control for row in line.runs if row.passed]
    with_control = [line if line.is_control else _against(line, controls) for line in lines]
    drift = noise.drift(control_passes(controls))
    selective: dict[_Recomputes, list[Line]] = {}
    for line in with_control:
        if line.candidate.recompute.granularity == "selective":
            selective.setdefault(_recomputes(line.candidate), []).append(line)
    return [replace(line, one_label=_one_label(line, selective, drift)) for line in with_control]


def _against(line: Line, controls: Sequence[Row]) -> Line:
    passing = [row for row in line.runs if row.passed]
    pairs = [(row, *_own_controls(row, controls)) for row in passing]
    losses = [
        value for row, own, _ in pairs for control in own if (value := _loss_difference(row, control)) is not None
    ]
    return replace(
        line,
        peak_delta=_delta(pairs, _peak_of, _no_scatter),
        time_delta=_delta(pairs, _time_of, _window_scatter, passes=control_passes(controls), garbage_of=_garbage_of),
        loss_difference=max(losses, default=None),
    )


def control_passes(controls: Sequence[Row]) -> list[float]:
    """Every known step time of these controls, also of their passes in other studies' jobs."""
    elsewhere = {row.trial: row.other_passes_ms for row in controls}
    return [row.step_ms for row in controls if row.step_ms is not None] + [
        step_ms for times in elsewhere.values() for step_ms in times
    ]


def _own_controls(row: Row, controls: Sequence[Row]) -> tuple[list[Row], bool]:
    """The controls of a row's own job; those of all jobs, and that this is so, where its own has none."""
    own = [control for control in controls if control.batch == row.batch]
    return (own, False) if own else (list(controls), True)


def _delta(
    pairs: Sequence[_Pair],
    value_of: Callable[[Row], float | None],
    scatter_of: Callable[[Row], float | None],
    drift: float | None = None,
    passes: Sequence[float] = (),
    garbage_of: Callable[[Row], float | None] = lambda _: None,
) -> Delta | None:
    deltas, control_scatters, control_runs, other_nodes, other_hosts = [], [], set(), False, False
    # Of each pair, what garbage collection took of the run less of its controls, as a share of theirs.
    drifts, garbage = [drift], []
    for row, controls, elsewhere in pairs:
        value = value_of(row)
        references = [reference for control in controls if (reference := value_of(control)) is not None]
        if value is None or not references or not (reference := statistics.fmean(references)):
            continue
        deltas.append(value / reference - 1)
        drifts.append(noise.drift(references))
        control_scatters += [scatter for control in controls if (scatter := scatter_of(control)) is not None]
        taken, of_controls = garbage_of(row), [ms for control in controls if (ms := garbage_of(control)) is not None]
        if taken is not None and of_controls:
            garbage.append((taken - statistics.fmean(of_controls)) / reference)
        control_runs |= {id(control) for control in controls}
        other_nodes |= elsewhere
        other_hosts |= elsewhere and _hosts_differ(row, controls)
    if not deltas:
        return None
    own = [scatter for row, _, _ in pairs if (scatter := scatter_of(row)) is not None]
    band = noise.band(
        deltas,
        own_scatter=statistics.median(own) if own else None,
        control_scatter=statistics.median(control_scatters) if control_scatters and len(control_runs) == 1 else None,
        drifts=drifts,
        passes=passes,
        garbage=abs(statistics.fmean(garbage)) if garbage else 0.0,
    )
    return Delta(statistics.median(deltas), band, other_nodes, other_hosts)


def _hosts_differ(row: Row, controls: Sequence[Row]) -> bool:
    """Whether a control is known to have run on other nodes than the row."""
    return bool(row.hosts) and any(control.hosts and {*control.hosts} != {*row.hosts} for control in controls)


def _one_label(
    line: Line, selective: Mapping[_Recomputes, Sequence[Line]], drift: float | None
) -> tuple[OneLabel, ...]:
    offloading, labels = _recomputes(line.candidate)
    found = []
    for label in labels:
        for base in selective.get((offloading, labels - {label}), ()):
            references = [row for row in base.runs if row.passed]
            pairs = [(row, *_own_controls(row, references)) for row in line.runs if row.passed]
            found.append(
                OneLabel(
                    base=base.text,
                    label=label,
                    peak=_delta(pairs, _peak_of, _no_scatter),
                    time=_delta(pairs, _time_of, _window_scatter, drift, garbage_of=_garbage_of),
                )
            )
    return tuple(sorted(found, key=lambda change: (change.base.count(","), change.base)))


def _recomputes(candidate: Candidate) -> _Recomputes:
    return candidate.offloading, candidate.recompute.labels


def _peak_bytes(row: Row) -> int:
    return (row.peak.allocated or 0) if row.peak else 0


def _peak_of(row: Row) -> float | None:
    return row.peak.allocated if row.peak else None


def _time_of(row: Row) -> float | None:
    return row.step_ms


def _window_scatter(row: Row) -> float | None:
    return row.step_scatter


def _garbage_of(row: Row) -> float | None:
    return row.step_gc_ms


def _no_scatter(_: Row) -> float | None:
    """A peak has no scatter of its own within one run."""
    return None


def _loss_difference(row: Row, control: Row) -> float | None:
    drift = loss_drift(row.losses, control.losses)
    return None if drift is None else drift.largest


_FORWARD = frozenset({Stage.FORWARD})
_SCOPES = (PeakScope.ALL_RANKS, PeakScope.REPORTED_MAX, PeakScope.ONE_RANK)


def _narrowness(scope: PeakScope) -> int:
    return _SCOPES.index(scope)


def _line_order(line: Line) -> tuple[int, int, int, str]:
    """A source's own order where it has one; else the control, fewer labels before more, and `full` last."""
    place = line.runs[0].source.get("order")
    recompute = line.candidate.recompute
    kind = 0 if line.is_control else 2 if recompute.granularity == "full" else 1
    return (place if isinstance(place, int) else -1, kind, len(recompute.labels), line.text)
