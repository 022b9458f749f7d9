"""From a comparison to a choice, with its reasons and what to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.comparison import Comparison, Group, Line
from orchestrator.analysis.floor import floor_verdict, instead
from orchestrator.analysis.paste import bridge_overrides, our_overrides, python_lines
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, RUNNING, Row
from orchestrator.analysis.too_fast import too_fast
from orchestrator.select.lever import OPTIMIZER_BOUND, OPTIMIZER_STAGES, Measured, StageUse, Verdict, verdicts
from orchestrator.select.pick import Loss, Objective, Option, Pick, pick
from orchestrator.vocabulary.units import format_bytes


@dataclass(frozen=True)
class Alike:
    """Candidates that fit too and are slower than the choice by less than the noise: their order is chance."""

    names: tuple[str, ...]
    band: float
    """Half-width of the widest noise band among them, as a fraction of the control's step."""

    @property
    def text(self) -> str:
        return (
            f"Not measurably slower than this choice, within the widest noise band among them, ±{self.band:.2%} of the "
            "control's step: "
            f"{'; '.join(self.names)}. Which of them is fastest is chance until more is measured: study.repeats=3, "
            "say, or a longer training.steady_window."
        )


@dataclass(frozen=True)
class Settings:
    """A candidate as what to paste."""

    name: str
    python: tuple[str, ...]
    """Lines for a recipe."""
    bridge: str
    """Overrides for the command line of Bridge's scripts."""
    ours: str
    """Overrides for this program."""


@dataclass(frozen=True)
class Recommendation:
    """The answer for one match key."""

    group: Group
    pick: Pick
    chosen: Line | None
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]
    python: tuple[str, ...] = ()
    """Lines for a recipe."""
    bridge: str = ""
    """Overrides for the command line of Bridge's scripts."""
    ours: str = ""
    """Overrides for this program."""
    alike: Alike | None = None
    """What the noise does not tell from the choice; also the last of `warnings`."""
    target: int | None = None
    """Bytes that were asked for, before headroom."""
    target_from: str = ""
    """Who gave the target, in words; empty where nobody says."""
    instead: Settings | None = None
    """Of those, the one that recomputes least, where that is less than the choice does."""
    reserved_over: str = ""
    """That reserved memory is over the limit although allocated memory fits; also the first of `warnings`."""


def recommend(
    comparison: Comparison,
    *,
    target: int | None,
    headroom: int = 0,
    objective: Objective = Objective.STEP_TIME,
) -> list[Recommendation]:
    """One answer a match key: candidates of different keys are never weighed against each other."""
    return [_recommend(group, target, headroom, objective) for group in comparison.groups]


def _recommend(group: Group, target: int | None, headroom: int, objective: Objective) -> Recommendation:
    lines = {_option(line): line for line in group.lines}
    answer = pick(lines, target=target, headroom=headroom, objective=objective)
    chosen = lines[answer.choice] if answer.choice is not None else None
    measured = [_measured(line) for line in group.lines if _tells_of_memory(line)]
    if chosen is None:
        found = [_with_remedy(verdict, group) for verdict in verdicts(measured, answer.limit)]
    else:
        floor = floor_verdict(group) if _in_optimizer(chosen) else None
        found = [floor] if floor is not None else _bound_by_state(group, chosen, measured)
    waiting = _without_result(group)
    over = _reserved_over(chosen, answer)
    alike = _within_noise(group, chosen, answer, lines)
    less = _recomputes_less(group, chosen, alike)
    said = [] if chosen is None or less is None or alike is None else [_by_chance(chosen, less, alike)]
    return Recommendation(
        group=group,
        pick=answer,
        chosen=chosen,
        verdicts=tuple(found),
        warnings=(
            *([over] if over else []),
            *([waiting] if waiting else []),
            *answer.warnings,
            *([fast] if chosen is not None and (fast := too_fast(group, chosen)) else []),
            *_warnings(group, chosen),
            *_against_own_controls(chosen, answer, lines),
            *said,
            *([alike.text] if alike else []),
        ),
        python=tuple(python_lines(chosen.candidate, chosen.decided)) if chosen else (),
        bridge=bridge_overrides(chosen.candidate, chosen.decided) if chosen else "",
        ours=our_overrides(chosen.candidate) if chosen else "",
        alike=alike,
        target=target,
        instead=_settings(less) if less is not None else None,
        reserved_over=over,
    )


def _with_remedy(verdict: Verdict, group: Group) -> Verdict:
    """The same advice as where something qualifies: by what the optimizer of these rows does already."""
    return Verdict(verdict.id, f"{verdict.text} {instead(group)}") if verdict.id == OPTIMIZER_BOUND else verdict


def _bound_by_state(group: Group, chosen: Line, measured: Sequence[Measured]) -> list[Verdict]:
    """That no candidate peaks where recompute acts, of a choice that recomputes all the same."""
    if chosen.is_control:
        return []
    return [_with_remedy(verdict, group) for verdict in verdicts(measured, None) if verdict.id == OPTIMIZER_BOUND]


def _without_result(group: Group) -> str:
    """That the answer is one among fewer candidates than were asked for; empty where all have a result."""
    lines = [line for line in group.lines if line.decided.is_open]
    if not lines:
        return ""
    by_reason: dict[str, list[str]] = {}
    for line in lines:
        by_reason.setdefault(_why_open(line.decided), []).append(line.text)
    names = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
    count = f"{len(lines)} of {len(group.lines)} candidates {'have' if len(lines) > 1 else 'has'} no result"
    again = any(line.decided.outcome_text != RUNNING for line in lines)
    more = "; the same run command takes up what is missing" if again else ""
    return f"{count}: {names}. The answer is of the others alone{more}."


def _in_optimizer(line: Line) -> bool:
    return line.peak is not None and line.peak.stage in OPTIMIZER_STAGES


def _reserved_over(chosen: Line | None, answer: Pick) -> str:
    """That the choice fits by what torch allocated, and not by what its allocator holds; empty where both fit."""
    if chosen is None or answer.limit is None or chosen.reserved is None or chosen.reserved <= answer.limit:
        return ""
    return (
        f"Only allocated memory fits: the allocator reserved {format_bytes(chosen.reserved)}, "
        f"{format_bytes(chosen.reserved - answer.limit)} over the limit of {format_bytes(answer.limit)}. On a device "
        f"of that size, try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first."
    )


def _settings(line: Line) -> Settings:
    return Settings(
        name=line.text,
        python=tuple(python_lines(line.candidate, line.decided)),
        bridge=bridge_overrides(line.candidate, line.decided),
        ours=our_overrides(line.candidate),
    )


def _recomputes_less(group: Group, chosen: Line | None, alike: Alike | None) -> Line | None:
    """Of the candidates that the noise does not tell from the choice, the one that recomputes least."""
    if chosen is None or alike is None:
        return None
    lines = [line for line in group.lines if line.text in alike.names]
    least = min(lines, key=lambda line: (_amount(line), line.text), default=None)
    return least if least is not None and _amount(least) < _amount(chosen) else None


def _amount(line: Line) -> tuple[int, int]:
    """How much a candidate recomputes: nothing, some modules, whole layers."""
    recompute = line.candidate.recompute
    return (1 if recompute.granularity == "full" else 0, len(recompute.labels))


def _by_chance(chosen: Line, less: Line, alike: Alike) -> str:
    much = "nothing" if _amount(less) == (0, 0) else "less"
    slower = (less.step_ms or 0.0) - (chosen.step_ms or 0.0)
    return (
        f"This choice over {less.text} is chance: {less.text} recomputes {much}, fits too, and its step is "
        f"{slower:.2f} ms longer, inside the noise band of ±{alike.band:.2%}. The rule takes the smallest mean step "
        f"time; to take {less.text} instead: {our_overrides(less.candidate) or 'leave the recipe as it is'}"
    )


def _option(line: Line) -> Option:
    peak = line.peak
    return Option(
        name=line.text,
        label=line.label,
        passed=line.passed,
        repeats=len(line.runs),
        peak=peak.allocated if peak else None,
        peak_scope=str(line.peak_scope) if line.peak_scope is not None else None,
        step_ms=line.step_ms,
        rank=peak.rank if peak else None,
        stage=str(peak.stage) if peak and peak.stage else None,
        open=_why_open(line.decided) if line.decided.is_open else None,
    )


def _tells_of_memory(line: Line) -> bool:
    """Whether it passed, or memory is what it ended for: one that ended early for another reason has no say."""
    ended = bool(line.passed) or (line.label or "").startswith("OOM-")
    return ended and not line.by_request and line.decided.stages_known


def _measured(line: Line) -> Measured:
    row = line.decided
    uses = {
        peak.stage: StageUse(peak.allocated, peak.reserved, peak.rank) for peak in row.peaks if peak.stage is not None
    }
    return Measured(line.text, uses, stopped_in=None if row.passed else row.stage, cause=row.cause)


def _warnings(group: Group, chosen: Line | None) -> list[str]:
    if chosen is None:
        return []
    found = []
    first = group.first_row
    if first.device_kind == "cpu":
        found.append("These rows were measured on a CPU: the choice says nothing about a GPU.")
    if first.origin == ORIGIN_PUBLISHED:
        found.append("These rows are published, not measured here: repeat the choice on your own revision and cluster.")
    if group.control is None:
        found.append("There is no control among these rows, so what recompute costs here is not known.")
    if len(chosen.runs) == 1 and first.origin != ORIGIN_PUBLISHED:
        found.append("One run only: a run-time out-of-memory that comes and goes would not have shown.")
    return found


def _within_noise(group: Group, chosen: Line | None, answer: Pick, lines: Mapping[Option, Line]) -> Alike | None:
    """Which slower ones that fit are slower by less than the noise."""
    reference = group.control.step_ms if group.control is not None else None
    if chosen is None or chosen.step_ms is None or not reference:
        return None
    slower = [lines[loser.option] for loser in answer.losers if loser.why is Loss.SLOWER]
    alike, bands = [], []
    for line in slower:
        known = [one.time_delta.band.half_width for one in (chosen, line) if one.time_delta and one.time_delta.band]
        if known and line.step_ms is not None and (line.step_ms - chosen.step_ms) / reference <= max(known):
            alike.append(line.text)
            bands.append(max(known))
    return Alike(tuple(alike), max(bands)) if alike else None


def _against_own_controls(chosen: Line | None, answer: Pick, lines: Mapping[Option, Line]) -> list[str]:
    """That another which fits would have come first by its own job's control: machines differ from job to job."""
    if chosen is None or (own := _share_of_control(chosen)) is None:
        return []
    slower = [lines[loser.option] for loser in answer.losers if loser.why is Loss.SLOWER]
    ahead = [line for line in slower if (share := _share_of_control(line)) is not None and share < own]
    controls = {
        row.batch: row.step_ms for line in lines.values() if line.is_control for row in line.runs if row.step_ms
    }
    if not ahead or len(controls) < 2:
        return []
    names = ", ".join(f"{line.text} ({_share_of_control(line) or 0.0:+.2%})" for line in ahead)
    least, most = min(controls.values()), max(controls.values())
    return [
        f"Held against the controls of their own jobs, {names} would come before this choice ({own:+.2%}): the "
        f"controls of {len(controls)} jobs took {least:.2f} to {most:.2f} ms. The rule takes the smallest measured "
        "step time; to run all of them in one job again (`retry`) would tell."
    ]


def _share_of_control(line: Line) -> float | None:
    if line.is_control:
        return 0.0
    return None if line.time_delta is None else line.time_delta.fraction


def _why_open(row: Row) -> str:
    return "cancelled" if row.label is not None else row.outcome_text or "no outcome is known"
