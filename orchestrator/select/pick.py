"""Which candidate to take under a memory target, and why each other one lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from orchestrator.vocabulary import PASS
from orchestrator.vocabulary.units import format_bytes

ALL_RANKS, REPORTED_MAX, ONE_RANK = "all_ranks", "reported_max", "one_rank"


class Objective(str, Enum):
    """What is made as small as possible among the candidates that fit."""

    STEP_TIME = "step_time"
    MEMORY = "memory"

    def __str__(self) -> str:
        return self.value


class Loss(str, Enum):
    """Why a candidate was not taken."""

    NOT_PASSED = "not_passed"
    NO_RESULT = "no_result"
    """It has not run, runs, or was cut short: it may yet be the one."""
    REPEAT_FAILED = "repeat_failed"
    ONE_RANK_PEAK = "one_rank_peak"
    NO_PEAK = "no_peak"
    NO_TIME = "no_time"
    OVER_TARGET = "over_target"
    SLOWER = "slower"
    LARGER = "larger"
    TIED = "tied"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Option:
    """A candidate as the choice sees it. Sizes are bytes, times milliseconds."""

    name: str
    label: str | None
    passed: int
    repeats: int
    peak: int | None
    """The largest allocated peak of any rank in any repeat."""
    peak_scope: str | None
    step_ms: float | None
    rank: int | None = None
    stage: str | None = None
    open: str | None = None
    """Why it has no result yet, in words: not run yet, running, cut short. None where what is known of it is final."""


@dataclass(frozen=True)
class Loser:
    """A candidate that was not taken, and why, in a code and a sentence."""

    option: Option
    why: Loss
    text: str


@dataclass(frozen=True)
class Pick:
    """The answer. `choice` is None where nothing qualifies: the nearest miss is never an answer."""

    choice: Option | None
    losers: tuple[Loser, ...]
    pareto: tuple[Option, ...]
    """Measured candidates that no other one beats in both memory and time, the target aside; smallest peak first."""
    limit: int | None
    """Target minus headroom, bytes; None without a target."""
    warnings: tuple[str, ...] = ()


def pick(
    options: Iterable[Option],
    *,
    target: int | None,
    headroom: int = 0,
    objective: Objective = Objective.STEP_TIME,
) -> Pick:
    """Among candidates that passed every repeat with every rank's peak at or below `target - headroom`, the one with
    the smallest step time (or peak). All options must be of one match key. Their order changes nothing.
    """
    known = sorted(options, key=_identity)
    limit = None if target is None else target - headroom
    losers = {option: loss for option in known if (loss := _unfit(option, limit)) is not None}
    fitting = [option for option in known if option not in losers]
    choice = min(fitting, key=lambda option: _order(option, objective), default=None)
    if choice is not None:
        losers |= {option: _beaten(option, choice, objective) for option in fitting if option != choice}
    return Pick(
        choice=choice,
        losers=tuple(losers[option] for option in known if option in losers),
        pareto=pareto_front([option for option in known if _measured(option)]),
        limit=limit,
        warnings=_warnings(choice),
    )


def pareto_front(options: Sequence[Option]) -> tuple[Option, ...]:
    """The options that none beats: no other has both a peak and a step time at least as small, and one smaller."""
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option.peak or 0, option.step_ms or 0.0, _identity(option))):
        fastest = front[-1] if front else None
        if fastest is None or (option.step_ms or 0.0) < (fastest.step_ms or 0.0) or _same(option, fastest):
            front.append(option)
    return tuple(front)


def _unfit(option: Option, limit: int | None) -> Loser | None:
    if option.label != PASS:
        if option.passed:
            text = f"only {option.passed} of {option.repeats} repeats passed ({option.label or 'no outcome'})"
            return Loser(option, Loss.REPEAT_FAILED, text)
        if option.open is not None:
            return Loser(option, Loss.NO_RESULT, f"has no result: {option.open}")
        return Loser(option, Loss.NOT_PASSED, f"did not pass ({option.label or 'no outcome is known'})")
    if option.peak is None:
        return Loser(option, Loss.NO_PEAK, "has no peak memory on record")
    if option.peak_scope not in (ALL_RANKS, REPORTED_MAX):
        text = "its peak is not of every rank, so the hot one may be missing"
        return Loser(option, Loss.ONE_RANK_PEAK, text)
    if limit is not None and option.peak > limit:
        where = f" on rank {option.rank}" if option.rank is not None else ""
        text = f"peak {format_bytes(option.peak)}{where} is over {format_bytes(limit)}"
        return Loser(option, Loss.OVER_TARGET, text)
    if option.step_ms is None:
        return Loser(option, Loss.NO_TIME, "has no steady step time on record")
    return None


def _beaten(option: Option, choice: Option, objective: Objective) -> Loser:
    slower = (option.step_ms or 0.0) - (choice.step_ms or 0.0)
    larger = (option.peak or 0) - (choice.peak or 0)
    if objective is Objective.STEP_TIME and slower > 0:
        return Loser(option, Loss.SLOWER, f"fits, but its step takes {slower:.2f} ms longer{_share(slower, choice)}")
    if objective is Objective.MEMORY and larger > 0:
        return Loser(option, Loss.LARGER, f"fits, but its peak is {format_bytes(larger)} larger")
    if slower > 0:
        return Loser(option, Loss.SLOWER, f"has the same peak, but its step takes {slower:.2f} ms longer")
    if larger > 0:
        return Loser(option, Loss.LARGER, f"is as fast, but its peak is {format_bytes(larger)} larger")
    return Loser(option, Loss.TIED, "is as fast and as small; the first by name was taken")


def _share(slower: float, choice: Option) -> str:
    return f" ({slower / choice.step_ms:+.2%})" if choice.step_ms else ""


def _warnings(choice: Option | None) -> tuple[str, ...]:
    if choice is None or choice.peak_scope != REPORTED_MAX:
        return ()
    return (
        "The peak of this choice is a maximum that a log reported. Which ranks it covers is not known: "
        "measure it on every rank before you rely on it.",
    )


def _measured(option: Option) -> bool:
    return _unfit(option, None) is None


def _order(option: Option, objective: Objective) -> tuple[float, float, str]:
    peak, step = float(option.peak or 0), option.step_ms or 0.0
    return (step, peak, option.name) if objective is Objective.STEP_TIME else (peak, step, option.name)


def _same(one: Option, other: Option) -> bool:
    return (one.peak, one.step_ms) == (other.peak, other.step_ms)


def _identity(option: Option) -> tuple[str, str, int, float, str]:
    """Ends in all of it, so that nothing but an equal one stands beside it: an absent peak is none of 0 bytes."""
    return (option.name, option.label or "", option.peak or 0, option.step_ms or 0.0, repr(option))
