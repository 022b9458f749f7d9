"""What a report says first of a match key: what to set, what it costs, why the runner-up lost, how to repeat it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.analysis.command import Commands
from orchestrator.analysis.comparison import Delta, Line
from orchestrator.analysis.recommend import Alike, Recommendation
from orchestrator.analysis.reproduce import repeat_candidate, repeat_group
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope
from orchestrator.report.compare import NO_EFFECT, band_text, percent
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
    """Without what `alike` says."""
    runner_up: Loser | None
    runner_up_noise: str
    """What the noise makes of the runner-up's time; empty where it is told from the choice."""
    without_recompute: Loser | None
    """Why the control was not taken; None where it was, where there is none, and where it is the runner-up."""
    repeat: str | None
    """The command that measures the choice and its control again."""
    repeat_all: str | None
    """The command that measures every candidate again."""

    @property
    def recommends(self) -> bool:
        return self.answer.chosen is not None


def decision(answer: Recommendation, commands: Commands) -> Decision:
    """What the recommendation says, in the order that a reader asks it."""
    group, chosen = answer.group, answer.chosen
    candidate = chosen if chosen is not None else group.control or group.lines[0]
    second = runner_up(answer)
    return Decision(
        answer=answer,
        headline=_headline(answer),
        basis=_basis(answer),
        alike=answer.alike,
        facts=tuple(_facts(answer, chosen)) if chosen is not None else (),
        warnings=tuple(text for text in answer.warnings if answer.alike is None or text != answer.alike.text),
        runner_up=second,
        runner_up_noise=_runner_up_noise(answer, second),
        without_recompute=_control_loser(answer, second),
        repeat=repeat_candidate(candidate.candidate, candidate.decided, commands) if chosen is not None else None,
        repeat_all=repeat_group(group, commands),
    )


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
    within = "" if limit is None else f" with every rank at or below {format_bytes(limit)}"
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


def _runner_up_noise(answer: Recommendation, second: Loser | None) -> str:
    if answer.alike is None or second is None or second.option.name not in answer.alike.names:
        return ""
    return f"inside the noise of ±{answer.alike.band:.2%}, so not measurably slower"


def _facts(answer: Recommendation, line: Line) -> list[Fact]:
    choice, limit = answer.pick.choice, answer.pick.limit
    assert choice is not None, "a chosen line has a choice"
    published = line.decided.origin == ORIGIN_PUBLISHED
    where = [
        f"on rank {choice.rank}" if choice.rank is not None else "rank not stated",
        f"in {choice.stage}" if choice.stage else "stage not stated",
    ]
    scope = _SCOPES.get(line.peak_scope, "") if line.peak_scope is not None else ""
    if line.passed > 1:
        scope = f"{scope}; the largest of {line.passed} runs"
    facts = [Fact("Peak allocated, hottest rank", f"{format_bytes(choice.peak)} {', '.join(where)}", scope)]
    if limit is not None and choice.peak is not None:
        facts.append(Fact("Room below the target", _like(limit - choice.peak, limit), f"target {format_bytes(limit)}"))
    tflops = "" if line.tflops_per_gpu is None else f"{line.tflops_per_gpu:.4g} TFLOP/s/GPU"
    median = f"median of {line.passed} runs" if line.passed > 1 else ""
    beside = ", ".join(part for part in (tflops, median) if part)
    facts.append(Fact("Step time", f"{choice.step_ms or 0.0:.2f} ms", beside))
    if line.is_control:
        facts.append(Fact("Cost", "none", "it is the control, which recomputes nothing"))
    else:
        facts.append(_change("Time against the control", line.time_delta))
        facts.append(_change("Memory against the control", line.peak_delta))
    first = answer.group.first_row
    window = first.steady_window
    count = len(line.runs)
    runs = "one run, which passed" if count == 1 else f"{line.passed} of {count} runs passed"
    if published:
        runs = "published, not measured here"
    span = f"mean of iterations {window[0]} to {window[1]}" if window else "window not stated"
    facts.append(Fact("How we know", runs, f"{span}; {first.device_name or first.device_kind or 'device not stated'}"))
    return facts


def _like(size: int, other: int) -> str:
    """A size in the unit of another one, unless nothing of it would show."""
    for unit, factor in (("GB", GB), ("MB", MB)):
        if other >= factor and size >= factor / 1000:
            return f"{size / factor:.3f} {unit}"
    return format_bytes(size)


def _change(name: str, delta: Delta | None) -> Fact:
    """A delta with what the noise makes of it: one that is not measurable may still cost."""
    if delta is None:
        return Fact(name, ABSENT, "the control has none to hold it against")
    elsewhere = "; the control ran in another job, perhaps on other nodes" if delta.other_nodes else ""
    band = band_text(delta.band)
    if not delta.measurable and delta.band is not None and band:
        low, high = delta.fraction - delta.band.half_width, delta.fraction + delta.band.half_width
        beside = f"{NO_EFFECT}: with noise of {band}, anything from {percent(low)} to {percent(high)}"
    elif not delta.measurable:
        beside = NO_EFFECT
    else:
        beside = f"noise {band}" if band else "" if delta.band is not None else "noise not known"
    return Fact(name, percent(delta.fraction), beside + elsewhere)
