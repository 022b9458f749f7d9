"""The batch of a further job: what a job left undone, or trials asked for again, with their controls. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace

from orchestrator.dispatch.batch import CLOSING_CONTROL_FROM
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL, Batch, BatchTrial


def follow_up(batch: Batch, left: Collection[int], now: float) -> Batch | None:
    """A batch of the positions in `left`; None where no trial is left.

    A closing control alone is no reason for a job. The name follows from the batch's own, so a driver that is killed
    while it hands over and started again hands over the same batch.
    """
    trials = regrouped(batch, left)
    if not trials:
        return None
    name = hashlib.sha256(f"follow-up of {batch.batch}".encode()).hexdigest()[:12]
    return replace(batch, batch=name, created_at=now, trials=trials)


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
