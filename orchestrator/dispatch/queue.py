"""What a driver does next: which trials of a batch are open, given every attempt it has made. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, Batch
from orchestrator.vocabulary import PASS, SETUP_STAGES, Cause, Consequence, Stage, consequence_of, is_result

BAD_NODE_CAUSES = frozenset({Cause.NODE_FAILURE, Cause.HARDWARE, Cause.SHARED_GPU})
"""Causes that lie with a node: another attempt is made elsewhere."""


SHARED_CAUSES = frozenset({Cause.IMPORT_ERROR, Cause.REVISION_MISMATCH, Cause.INVALID_CONFIG, Cause.LAUNCH, Cause.DATA})
"""Causes that may lie with what a control shares with the trials behind it, where it ends of them before its first
forward: software, image, model, layout and data. Memory is none of them: recompute may help where a control did not
fit."""


class Fate(str, Enum):
    """What became of one attempt, as far as the order of work depends on it."""

    PASSED = "passed"
    KEPT = "kept"
    """It has a result, or needs the user: not repeated here."""
    NEVER_BEGAN = "never-began"
    """As `KEPT`, of a cause before the first forward that others may share."""
    RETRY = "retry"
    CUT_SHORT = "cut-short"
    """It ended with its job, not by itself: it counts as never made."""


@dataclass(frozen=True)
class Made:
    """An attempt that this batch has made and that ended."""

    slot: int
    """Position in the batch's list of trials."""
    fate: Fate
    cause: Cause = Cause.UNKNOWN


def fate_of(cause: Cause, label: str | None, *, cut_short: bool, stage: Stage | None = None) -> Fate:
    """What follows from an attempt's outcome. One that had its result when its job ended has its result."""
    if label == PASS:
        return Fate.PASSED
    if cut_short and not is_result(label or ""):
        return Fate.CUT_SHORT
    if consequence_of(cause) is Consequence.RETRY:
        return Fate.RETRY
    return Fate.NEVER_BEGAN if cause in SHARED_CAUSES and stage in SETUP_STAGES else Fate.KEPT


def open_slots(
    batch: Batch, made: Sequence[Made], dropped: frozenset[str] = frozenset(), *, search: bool = False
) -> list[int]:
    """Positions that still need an attempt, in the order to start them; running ones included.

    `dropped` are trials that were cancelled. A closing control is open only where its opening one passed, and what is
    `held_back` is not, but in a search, which has rules of its own for what to try next.
    """
    without = set() if search else set(held_back(batch, made, dropped))
    return [slot for slot in range(len(batch.trials)) if slot not in without and _is_open(batch, made, slot, dropped)]


def held_back(batch: Batch, made: Sequence[Made], dropped: frozenset[str] = frozenset()) -> list[int]:
    """Positions that would be open, had a control and a trial behind it begun: to run them would only cost their time.

    One failure is not enough. A control comes first, and so meets what only the first one meets (a cold cache, a
    service that does not answer); and it may be refused where a candidate is not.
    """
    found: list[int] = []
    for slots in _groups(batch):
        control, *behind = slots
        causes = {one.cause for one in made if one.slot == control and one.fate is Fate.NEVER_BEGAN}
        after = [one for one in made if one.slot in behind]
        alike = any(one.fate is Fate.NEVER_BEGAN and one.cause in causes for one in after)
        if alike and not any(one.fate in (Fate.PASSED, Fate.KEPT) for one in made if one.slot in slots):
            found += [slot for slot in behind if _is_open(batch, made, slot, dropped)]
    return found


def _groups(batch: Batch) -> list[list[int]]:
    """An opening control with the trials behind it, for each of the batch's controls."""
    found: list[list[int]] = []
    for slot, trial in enumerate(batch.trials):
        if trial.role == ROLE_CONTROL_FIRST:
            found.append([slot])
        elif trial.role == _ORDINARY and found:
            found[-1].append(slot)
    return found


def startable(
    batch: Batch,
    made: Sequence[Made],
    running: Sequence[int],
    dropped: frozenset[str],
    deferred: Collection[int] = frozenset(),
    *,
    search: bool = False,
) -> list[int]:
    """The positions to start now: as many as may run side by side, first ones first; not those left to another job.

    A key's opening control runs alone, so that its step time is nobody else's, and its closing one starts when the
    rest of the batch before it has ended.
    """
    chosen: list[int] = []
    for slot in open_slots(batch, made, dropped, search=search):
        busy = [*running, *chosen]
        if len(busy) >= max(1, batch.parallel_trials):
            break
        if slot in busy or slot in deferred:
            continue
        if any(batch.trials[other].role != _ORDINARY for other in busy):
            break
        if batch.trials[slot].role != _ORDINARY and busy:
            break
        chosen.append(slot)
    return chosen


_ORDINARY = "trial"


def _is_open(batch: Batch, made: Sequence[Made], slot: int, dropped: frozenset[str]) -> bool:
    trial = batch.trials[slot]
    if trial.trial in dropped:
        return False
    fates = [attempt.fate for attempt in made if attempt.slot == slot]
    if any(fate in (Fate.PASSED, Fate.KEPT, Fate.NEVER_BEGAN) for fate in fates):
        return False
    if fates.count(Fate.RETRY) + batch.spent.get(trial.trial, 0) >= max(1, batch.max_attempts):
        return False
    if trial.role == ROLE_CONTROL_LAST:
        opening = _opening_of(batch, slot)
        return opening is None or _may_close(batch, made, opening, dropped)
    return True


def _opening_of(batch: Batch, slot: int) -> int | None:
    for other in range(slot - 1, -1, -1):
        if batch.trials[other].trial == batch.trials[slot].trial and batch.trials[other].role == ROLE_CONTROL_FIRST:
            return other
    return None


def _may_close(batch: Batch, made: Sequence[Made], opening: int, dropped: frozenset[str]) -> bool:
    if any(attempt.slot == opening and attempt.fate is Fate.PASSED for attempt in made):
        return True
    return _is_open(batch, made, opening, dropped)
