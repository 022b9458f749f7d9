"""What a report says first of a match key: what to set, what it costs, why the runner-up lost, how to repeat it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.analysis.command import Commands
from orchestrator.analysis.comparison import Line
from orchestrator.analysis.recommend import Recommendation
from orchestrator.analysis.reproduce import repeat_candidate, repeat_group
from orchestrator.analysis.rows import ORIGIN_PUBLISHED, PeakScope
from orchestrator.report.compare import delta_text
from orchestrator.select.pick import Loser, Loss, pick
from orchestrator.vocabulary.units import format_bytes

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
    """By which rule it was taken."""
    facts: tuple[Fact, ...]
    runner_up: Loser | None
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
        facts=tuple(_facts(answer, chosen)) if chosen is not None else (),
        runner_up=second,
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
    if answer.pick.limit is None:
        return "the fastest candidate that passed. No memory target was given: --target-gb sets one"
    return f"the fastest candidate that passed with every rank at or below {format_bytes(answer.pick.limit)}"


def _facts(answer: Recommendation, line: Line) -> list[Fact]:
    choice, limit = answer.pick.choice, answer.pick.limit
    assert choice is not None, "a chosen line has a choice"
    published = line.decided.origin == ORIGIN_PUBLISHED
    where = [
        f"on rank {choice.rank}" if choice.rank is not None else "rank not stated",
        f"in {choice.stage}" if choice.stage else "stage not stated",
    ]
    scope = _SCOPES.get(line.peak_scope, "") if line.peak_scope is not None else ""
    facts = [Fact("Peak allocated, hottest rank", f"{format_bytes(choice.peak)} {', '.join(where)}", scope)]
    if limit is not None and choice.peak is not None:
        facts.append(Fact("Room below the target", format_bytes(limit - choice.peak), f"target {format_bytes(limit)}"))
    tflops = "" if line.tflops_per_gpu is None else f"{line.tflops_per_gpu:.4g} TFLOP/s/GPU"
    facts.append(Fact("Step time", f"{choice.step_ms or 0.0:.2f} ms", tflops))
    if line.is_control:
        facts.append(Fact("Cost", "none", "it is the control, which recomputes nothing"))
    else:
        facts.append(Fact("Time against the control", delta_text(line.time_delta)))
        facts.append(Fact("Memory against the control", delta_text(line.peak_delta)))
    first = answer.group.first_row
    window = first.steady_window
    runs = f"{line.passed} of {len(line.runs)} runs passed" if not published else "published, not measured here"
    span = f"mean of iterations {window[0]} to {window[1]}" if window else "window not stated"
    facts.append(Fact("How we know", runs, f"{span}; {first.device_name or first.device_kind or 'device not stated'}"))
    return facts
