"""The batch of a further job: what a job left undone, or trials asked for again, with their controls. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.dispatch.batch import CLOSING_CONTROL_FROM
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL, Batch, BatchTrial


@dataclass(frozen=True)
class Left:
    """What a job could not do, and what it learnt about that."""

    slots: Collection[int]
    """Positions in the batch that need an attempt."""
    retried: Mapping[int, int] = field(default_factory=dict)
    """By position, how many attempts ended with a cause that says retry."""
    cut_short: Collection[int] = ()
    """Positions that ran until the job's time limit."""
    bad_nodes: Collection[str] = ()


def follow_up(batch: Batch, left: Left, now: float) -> Batch | None:
    """A batch of what is left; None where no trial is.

    A closing control alone is no reason for a job. A trial that two jobs in a row could not finish is left to the user,
    since a third would not either. The name follows from the batch's own, so a driver that is killed while it hands
    over and started again hands over the same batch.
    """
    given_up = hopeless(batch, left)
    trials = regrouped(batch, [slot for slot in left.slots if batch.trials[slot].trial not in given_up])
    if not trials:
        return None
    spent = Counter(batch.spent)
    for slot, attempts in left.retried.items():
        spent[batch.trials[slot].trial] += attempts
    name = hashlib.sha256(f"follow-up of {batch.batch}".encode()).hexdigest()[:12]
    return replace(
        batch,
        batch=name,
        created_at=now,
        trials=trials,
        spent=dict(spent),
        cut_short=sorted({*batch.cut_short, *(batch.trials[slot].trial for slot in left.cut_short)}),
        avoid=sorted({*batch.avoid, *left.bad_nodes}),
    )


def hopeless(batch: Batch, left: Left) -> list[str]:
    """Trials that ran until the time limit of this job and of the one before it."""
    return sorted({batch.trials[slot].trial for slot in left.cut_short} & set(batch.cut_short))


def regrouped(batch: Batch, chosen: Collection[int]) -> list[BatchTrial]:
    """The chosen positions of a batch, each match key's behind its control again."""
    trials: list[BatchTrial] = []
    for opening, members in _groups(batch):
        own = [slot for slot in members if slot in chosen and batch.trials[slot].role == ROLE_TRIAL]
        if opening is not None and (own or opening in chosen):
            trials.append(batch.trials[opening])
        trials += [batch.trials[slot] for slot in own]
        if opening is not None and len(own) >= CLOSING_CONTROL_FROM:
            trials.append(replace(batch.trials[opening], role=ROLE_CONTROL_LAST))
    return trials


def _groups(batch: Batch) -> list[tuple[int | None, list[int]]]:
    """The opening control of each match key and the positions behind it: a batch lists them key by key."""
    groups: list[tuple[int | None, list[int]]] = []
    for slot, trial in enumerate(batch.trials):
        if trial.role == ROLE_CONTROL_FIRST:
            groups.append((slot, []))
        elif not groups:
            groups.append((None, [slot]))
        else:
            groups[-1][1].append(slot)
    return groups
