"""Which candidate a search tries next: control first, narrow before broad, and no more than the answer needs. Pure.

A prediction chooses what to try and what not to; it never says which candidate wins. Measured rows do (`pick`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.select.pick import ALL_RANKS, ONE_RANK, REPORTED_MAX
from orchestrator.vocabulary import PASS
from orchestrator.vocabulary.units import format_bytes

_CHEAPEST = 0.75
"""A replay predicted to cost so much less than the best so far may be cheaper than it; how two replays compare is surer
than what either takes."""
_NOTICEABLE = 0.002
"""A saving below this share of the control's peak is none: measured peaks repeat no better."""


@dataclass(frozen=True)
class Prospect:
    """A candidate as predictions see it, taught by the control where there is one. Bytes and seconds."""

    name: str
    is_control: bool
    peak: int
    low: int
    high: int
    saving: int
    """Bytes by which forward keeps less than the control."""
    replay: float
    """Seconds that its replays add to a step."""
    hours: float = 0.0
    """GPU-hours that trying it takes."""
    labels: frozenset[str] = frozenset()
    """What it recomputes; empty under full granularity."""
    whole_layers: bool = False
    """Whether it replays every layer as a whole, so all that any selective set replays."""


@dataclass(frozen=True)
class Result:
    """What came of a trial."""

    label: str
    peak: int | None = None
    peak_scope: str | None = None
    step_ms: float | None = None

    @property
    def passed(self) -> bool:
        return self.label == PASS

    @property
    def out_of_memory(self) -> bool:
        return self.label.startswith("OOM-")


@dataclass(frozen=True)
class Skipped:
    """A candidate that is not worth a trial, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Decision:
    """What to try next, or that the search is over; with the reason, as it is recorded."""

    next: str | None
    reason: str
    answer: str | None = None
    """At the end: the measured candidate that meets the target, or that passes where no target can be judged."""
    skipped: tuple[Skipped, ...] = ()

    @property
    def done(self) -> bool:
        return self.next is None


def escalate(
    prospects: Sequence[Prospect],
    results: Mapping[str, Result],
    *,
    target: int | None,
    hours_left: float | None = None,
) -> Decision:
    """The next candidate, given every result so far. The same results always give the same decision, so that a search
    goes on where it stopped.

    `target` is bytes of allocated memory for every rank; None asks only for a candidate that passes. `hours_left` are
    GPU-hours that may still be spent.
    """
    control = next((prospect for prospect in prospects if prospect.is_control), None)
    if control is not None and control.name not in results:
        return _try(control, "control first: every other candidate is held against it", (), hours_left, results, target)
    best = _best(results, target)
    open_ones = [prospect for prospect in prospects if prospect.name not in results]
    kept: list[Prospect] = []
    skipped: list[Skipped] = []
    for prospect in open_ones:
        why = _why_not(prospect, prospects, results, control, best, target)
        if why is None:
            kept.append(prospect)
        else:
            skipped.append(Skipped(prospect.name, why))
    if not kept:
        return _end(best, results, target, tuple(skipped))
    chosen, reason = _narrowest(kept, target, best)
    return _try(chosen, reason, tuple(skipped), hours_left, results, target)


def _narrowest(kept: Sequence[Prospect], target: int | None, best: str | None) -> tuple[Prospect, str]:
    """Of what should meet the target, the cheapest replay; else of what may, the one that saves most for its cost."""
    if target is None:
        chosen = min(kept, key=lambda prospect: (prospect.replay, prospect.name))
        return chosen, f"the narrowest boundary that is left: it saves {format_bytes(chosen.saving)}"
    should = [prospect for prospect in kept if prospect.peak <= target]
    if should:
        chosen = min(should, key=lambda prospect: (prospect.replay, prospect.name))
        why = f"it could be cheaper than {best}" if best else "the narrowest boundary that should meet the target"
        return chosen, f"{why}: {format_bytes(chosen.peak)} are expected"
    chosen = min(kept, key=lambda prospect: (prospect.peak, prospect.replay, prospect.name))
    if best is not None:
        low = format_bytes(chosen.low)
        return chosen, f"it could be cheaper than {best}, and may meet the target: {low} at the least"
    return chosen, f"nothing is expected to meet the target; this may: {format_bytes(chosen.low)} at the least"


def _why_not(
    prospect: Prospect,
    prospects: Sequence[Prospect],
    results: Mapping[str, Result],
    control: Prospect | None,
    best: str | None,
    target: int | None,
) -> str | None:
    """Why a candidate need not be tried; None where it must."""
    if control is not None and prospect.saving <= _NOTICEABLE * control.peak:
        failed = control.name in results and not _meets(results[control.name], target)
        if failed:
            return "saves nothing that could be measured, and the control does not fit"
        if best == control.name:
            return "saves nothing that could be measured, and the control fits"
    if target is not None and prospect.low > target:
        return f"will not fit: at least {format_bytes(prospect.low)} are predicted"
    worse = _fails_with_more(prospect, prospects, results)
    if worse is not None:
        return f"saves no more than {worse}, which ran out of memory"
    if best is not None:
        cheaper = _could_be_cheaper(prospect, prospects, results, best)
        if not cheaper:
            return f"cannot be cheaper than {best}, which fits"
    return None


def _fails_with_more(prospect: Prospect, prospects: Sequence[Prospect], results: Mapping[str, Result]) -> str | None:
    for other in prospects:
        result = results.get(other.name)
        if result is not None and result.out_of_memory and other.saving >= prospect.saving:
            return other.name
    return None


def _could_be_cheaper(
    prospect: Prospect, prospects: Sequence[Prospect], results: Mapping[str, Result], best: str
) -> bool:
    """Whether its step could take less time than that of the best so far, by what replays have cost so far."""
    by_name = {one.name: one for one in prospects}
    winner = by_name[best]
    if winner.labels and (prospect.labels > winner.labels or prospect.whole_layers):
        return False
    control = next((one for one in prospects if one.is_control), None)
    base = results.get(control.name) if control is not None else None
    spent = results[best].step_ms
    if winner.replay <= 0:
        return False
    if base is None or base.step_ms is None or spent is None:
        return prospect.replay * _CHEAPEST < winner.replay
    taught = (spent - base.step_ms) / 1000 / winner.replay
    return prospect.replay * max(1.0, taught) * _CHEAPEST < max(0.0, (spent - base.step_ms) / 1000)


def _best(results: Mapping[str, Result], target: int | None) -> str | None:
    fitting = [name for name, result in results.items() if _meets(result, target)]
    return min(fitting, key=lambda name: (results[name].step_ms or float("inf"), name), default=None)


def _meets(result: Result, target: int | None) -> bool:
    """Whether it passed and is not known to miss the target.

    One rank's peak judges nothing, and further trials would report no more: a search takes such a pass, and says so.
    """
    if not result.passed:
        return False
    if target is None or result.peak_scope == ONE_RANK:
        return True
    return result.peak is not None and result.peak_scope in (ALL_RANKS, REPORTED_MAX) and result.peak <= target


def _end(best: str | None, results: Mapping[str, Result], target: int | None, skipped: tuple[Skipped, ...]) -> Decision:
    if best is None:
        return Decision(None, "nothing meets the target, and nothing that is left can", None, skipped)
    if results[best].peak_scope == ONE_RANK:
        return Decision(None, f"passes with {best}, no verdict on a target: one rank reported", best, skipped)
    does = "passes" if target is None else "fits"
    return Decision(None, f"{best} {does}, and no untried candidate can be both cheaper and fitting", best, skipped)


def _try(
    prospect: Prospect,
    reason: str,
    skipped: tuple[Skipped, ...],
    hours_left: float | None,
    results: Mapping[str, Result],
    target: int | None,
) -> Decision:
    if hours_left is not None and prospect.hours > hours_left:
        best = _best(results, target)
        why = f"{prospect.name} would take {prospect.hours:.2f} GPU-hours and {hours_left:.2f} are left"
        return Decision(None, why, best, skipped)
    return Decision(prospect.name, reason, None, skipped)
