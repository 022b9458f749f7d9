"""What a report says first of a match key: what to set, what it costs, why the runner-up lost, how to repeat it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.analysis.command import Commands
from orchestrator.analysis.comparison import Delta, Line
from orchestrator.analysis.failure_rules import EXPANDABLE_SEGMENTS, has_expandable_segments
from orchestrator.analysis.recommend import Alike, Recommendation
from orchestrator.analysis.reproduce import repeat_candidate, repeat_candidates, repeat_group
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope
from orchestrator.report.compare import NO_EFFECT
from orchestrator.report.page.rounded import band_of, milliseconds, share, width
from orchestrator.report.table import ABSENT
from orchestrator.select.pick import Loser, Loss, pick
from orchestrator.vocabulary.units import GB, MB, format_bytes

_SCOPES = {
    PeakScope.ALL_RANKS: "every rank was measured",
    PeakScope.REPORTED_MAX: "a maximum that a log reported; which ranks it covers is not known",
    PeakScope.ONE_RANK: "not of every rank: the hot one may be missing",
}


@dataclass(frozen=True)
class Fact:
    """A line of the decision: what it is, the figure, and what a reader must know beside it."""

    name: str
    value: str
    beside: str = ""


@dataclass(frozen=True)
class Decision:
    """The answer of one match key, in words."""

    answer: Recommendation
    headline: str
    basis: str
    """By which rule it was taken, in a sentence that minds the noise."""
    alike: Alike | None
    """What the noise does not tell from the choice."""
    facts: tuple[Fact, ...]
    warnings: tuple[str, ...]
    """Without what `alike` and `reserved_over` say."""
    runner_up: Loser | None
    lost: tuple[tuple[str, str], ...]
    """Name of each other candidate, and why it lost."""
    without_recompute: Loser | None
    """Why the control was not taken; None where it was, where there is none, and where it is the runner-up."""
    repeat: str | None
    """The command that measures the choice and its control again."""
    repeat_all: str | None
    """The command that measures every candidate again."""
    repeat_alike: str | None
    """The command that measures what the noise does not tell apart three times."""
    expandable: str | None
    """The command that measures the choice again with expandable segments, where what is reserved is over the limit."""

    @property
    def recommends(self) -> bool:
        return self.answer.chosen is not None


def decision(answer: Recommendation, commands: Commands) -> Decision:
    """What the recommendation says, in the order that a reader asks it."""
    group, chosen = answer.group, answer.chosen
    candidate = chosen if chosen is not None else group.control or group.lines[0]
    second = runner_up(answer)
    said = (answer.reserved_over, answer.alike.text if answer.alike is not None else "")
    return Decision(
        answer=answer,
        headline=_headline(answer),
        basis=_basis(answer),
        alike=answer.alike,
        facts=tuple(_facts(answer, chosen)) if chosen is not None else (),
        warnings=tuple(text for text in answer.warnings if text not in said),
        runner_up=second,
        lost=tuple((loser.option.name, reason(answer, loser)) for loser in answer.pick.losers),
        without_recompute=_control_loser(answer, second),
        repeat=repeat_candidate(candidate.candidate, candidate.decided, commands) if chosen is not None else None,
        repeat_all=repeat_group(group, commands),
        repeat_alike=_repeat_alike(answer, commands),
        expandable=_expandable(answer, commands),
    )


def _repeat_alike(answer: Recommendation, commands: Commands) -> str | None:
    if answer.alike is None or answer.chosen is None or not commands.base:
        return None
    lines = [line for line in answer.group.lines if line is answer.chosen or line.text in answer.alike.names]
    return repeat_candidates([line.candidate for line in lines], commands, "study.repeats=3")


def _expandable(answer: Recommendation, commands: Commands) -> str | None:
    chosen = answer.chosen
    if chosen is None or not answer.reserved_over or not commands.base or has_expandable_segments(chosen.decided):
        return None
    return repeat_candidates([chosen.candidate], commands, EXPANDABLE_SEGMENTS)


def runner_up(answer: Recommendation) -> Loser | None:
    """What would have been taken without the choice; else the fastest that is over the target."""
    if answer.pick.choice is None:
        return None
    by_option = {loser.option: loser for loser in answer.pick.losers}
    second = pick(by_option, target=answer.pick.limit).choice
    if second is not None:
        return by_option[second]
    over = [loser for loser in answer.pick.losers if loser.why is Loss.OVER_TARGET and loser.option.step_ms is not None]
    return min(over, key=lambda loser: (loser.option.step_ms or 0.0, loser.option.name), default=None)


def _control_loser(answer: Recommendation, second: Loser | None) -> Loser | None:
    control = answer.group.control
    if control is None or answer.chosen is None:
        return None
    found = next((loser for loser in answer.pick.losers if loser.option.name == control.text), None)
    return None if found is None or found is second else found


def _headline(answer: Recommendation) -> str:
    if answer.chosen is None:
        limit = "" if answer.pick.limit is None else f" within {format_bytes(answer.pick.limit)} on every rank"
        return f"Nothing qualifies: no candidate passed{limit}"
    return "Recompute nothing" if answer.chosen.is_control else answer.chosen.text


def _basis(answer: Recommendation) -> str:
    if answer.chosen is None:
        return "The nearest miss is not an answer: below is why each candidate lost."
    limit = answer.pick.limit
    fit = 1 + sum(loser.why in (Loss.SLOWER, Loss.LARGER, Loss.TIED) for loser in answer.pick.losers)
    every = "every rank's" if _several_ranks(answer) else "an"
    within = "" if limit is None else f" with {every} allocated peak at or below {format_bytes(limit)}"
    if fit == 1:
        said = f"It is the only candidate that passed{within}."
    elif answer.alike is None and _noise_known(answer):
        said = f"It is the fastest of the {fit} candidates that passed{within}."
    elif answer.alike is None:
        said = (
            f"Its step time is the smallest of the {fit} candidates that passed{within}; how such times scatter is not "
            "known."
        )
    else:
        said = f"Its step time is the smallest of the {fit} candidates that passed{within}."
    return said if limit is not None else f"{said} No memory target was given: --target-gb sets one."


def _noise_known(answer: Recommendation) -> bool:
    return any(line.time_delta is not None and line.time_delta.band is not None for line in answer.group.lines)


def reason(answer: Recommendation, loser: Loser) -> str:
    """Why a candidate lost, with what the noise makes of its time."""
    option, choice, limit = loser.option, answer.pick.choice, answer.pick.limit
    if loser.why is Loss.OVER_TARGET and limit is not None:
        where = f" on rank {option.rank}" if option.rank is not None and _several_ranks(answer) else ""
        return f"peak {format_bytes(option.peak)}{where} is over {format_bytes(limit)}"
    if loser.why is not Loss.SLOWER or choice is None or not choice.step_ms:
        return loser.text
    slower, noise = (option.step_ms or 0.0) - choice.step_ms, _noise(answer, loser)
    reference = answer.group.control.step_ms if answer.group.control else None
    longer = milliseconds(slower, None if noise is None or reference is None else noise * reference)
    said = f"fits, but its step takes {longer} longer ({share(slower / choice.step_ms, noise)})"
    if answer.alike is None or option.name not in answer.alike.names:
        return said
    return f"{said}, inside the noise band, so not measurably slower"


def _noise(answer: Recommendation, loser: Loser) -> float | None:
    """The wider noise band of the choice and of a loser."""
    lines = [answer.chosen, answer.group.named.get(loser.option.name)]
    bands = [band.half_width for line in lines if line is not None and (band := band_of(line))]
    return max(bands, default=None)


def _several_ranks(answer: Recommendation) -> bool:
    """Whether saying which rank tells a reader anything; so too where their number is not stated."""
    return answer.group.first_row.world_size != 1


def _facts(answer: Recommendation, line: Line) -> list[Fact]:
    choice, limit, first = answer.pick.choice, answer.pick.limit, answer.group.first_row
    assert choice is not None, "a chosen line has a choice"
    published, several = line.decided.origin == ORIGIN_PUBLISHED, _several_ranks(answer)
    where = [
        *([f"on rank {choice.rank}" if choice.rank is not None else "rank not stated"] if several else []),
        f"in {choice.stage}" if choice.stage else "stage not stated",
    ]
    scopes = [_SCOPES.get(line.peak_scope, "") if line.peak_scope is not None and several else ""]
    scopes += [f"the largest of {line.passed} runs"] if line.passed > 1 else []
    name = "Peak allocated, hottest rank" if several else "Peak allocated"
    scope = "; ".join(part for part in scopes if part)
    facts = [Fact(name, f"{format_bytes(choice.peak)} {', '.join(where)}", scope)]
    if line.reserved is not None and line.decided.device_kind != "cpu":
        facts.append(Fact("Peak reserved", format_bytes(line.reserved), _reserved_beside(line, limit)))
    if limit is not None and choice.peak is not None:
        room = "Allocated room below the target"
        facts.append(Fact(room, _like(limit - choice.peak, limit), _target_beside(answer)))
    band = band_of(line)
    reference = answer.group.control.step_ms if answer.group.control else None
    noise = None if band is None or reference is None else band.half_width * reference
    tflops = "" if line.tflops_per_gpu is None else f"{line.tflops_per_gpu:.4g} TFLOP/s/GPU"
    median = f"median of {line.passed} runs" if line.passed > 1 else ""
    beside = ", ".join(part for part in (tflops, median) if part)
    facts.append(Fact("Step time", milliseconds(choice.step_ms or 0.0, noise), beside))
    if line.is_control:
        facts.append(Fact("Cost", "none", "it is the control, which recomputes nothing"))
    else:
        facts.append(change("Time against the control", line.time_delta))
        facts.append(_memory_change(answer, line))
    window = first.steady_window
    count = len(line.runs)
    runs = "one run, which passed" if count == 1 else f"{line.passed} of {count} runs passed"
    if published:
        runs = "published, not measured here"
    span = f"mean of iterations {window[0]} to {window[1]}" if window else "window not stated"
    facts.append(Fact("How we know", runs, f"{span}; {first.device_name or first.device_kind or 'device not stated'}"))
    return facts


def _reserved_beside(line: Line, limit: int | None) -> str:
    capacity = line.decided.device_capacity
    has = f"the device has {format_bytes(capacity)}" if capacity else ""
    over = line.reserved is not None and limit is not None and line.reserved > limit
    return "; ".join(part for part in ("over the target" if over else "", has) if part)


def _target_beside(answer: Recommendation) -> str:
    said = f"target {format_bytes(answer.target if answer.target is not None else answer.pick.limit)}"
    if answer.target is not None and answer.pick.limit is not None and answer.target != answer.pick.limit:
        said += f", {format_bytes(answer.target - answer.pick.limit)} of it left free"
    return f"{said}, {answer.target_from}" if answer.target_from else said


def _memory_change(answer: Recommendation, line: Line) -> Fact:
    """The change of the peak, and the control's own: recompute may move the peak to another stage."""
    fact = change("Memory against the control", line.peak_delta)
    control = answer.group.control
    if line.peak_delta is None or control is None or control.peak is None or control.peak.stage is None:
        return fact
    moved = line.peak is not None and line.peak.stage != control.peak.stage
    where = f"the control: {format_bytes(control.peak.allocated)} in {control.peak.stage}"
    beside = f"{where}, so the peak moved to another stage" if moved else where
    return Fact(fact.name, fact.value, "; ".join(part for part in (beside, fact.beside) if part))


def _like(size: int, other: int) -> str:
    """A size in the unit of another one, unless nothing of it would show."""
    for unit, factor in (("GB", GB), ("MB", MB)):
        if other >= factor and size >= factor / 1000:
            return f"{size / factor:.3f} {unit}"
    return format_bytes(size)


def change(name: str, delta: Delta | None) -> Fact:
    """A delta with what the noise makes of it: one that is not measurable may still cost."""
    if delta is None:
        return Fact(name, ABSENT, "the control has none to hold it against")
    place = "on other nodes" if delta.other_hosts else "in another job"
    elsewhere = f"the control ran {place}" if delta.other_nodes else ""
    half = delta.band.half_width if delta.band is not None else None
    if not delta.measurable and half:
        low, high = share(delta.fraction - half, half), share(delta.fraction + half, half)
        beside = f"{NO_EFFECT}: noise band {width(half)}, so anything from {low} to {high}"
    elif not delta.measurable:
        beside = NO_EFFECT
    else:
        beside = f"noise band {width(half)}" if half else "" if half is not None else "noise not known"
    return Fact(name, share(delta.fraction, half), "; ".join(filter(None, (beside, elsewhere))))
