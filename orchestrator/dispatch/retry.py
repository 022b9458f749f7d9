"""Trials asked for again: from the batches that had them, with what those say of how to run them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.dispatch.attempt import attempt_dirs, hosts_of, judge, read_attempt, read_spec
from orchestrator.dispatch.followup import regrouped
from orchestrator.dispatch.queue import BAD_NODE_CAUSES
from orchestrator.dispatch.submit import batch_dirs, live_batches, read_batch
from orchestrator.records.jsonfile import FormatError
from orchestrator.records.layout import UntrustedFolderError
from orchestrator.records.spec import ROLE_CONTROL_FIRST, Batch


def again(results_dir: Path, trials: Collection[str], now: float | None = None) -> list[Batch]:
    """Batches that run these trials again, each match key behind its control. Trials of a live batch are left out.

    A trial that no readable batch of this folder had is not in the answer.
    """
    wanted = set(trials) - {trial for live in live_batches(results_dir) for trial in live.open_trials}
    made = []
    for folder in reversed(batch_dirs(results_dir)):
        try:
            batch = read_batch(folder)
        except (FormatError, UntrustedFolderError):
            continue
        slots = _slots(batch, wanted)
        if not slots:
            continue
        wanted -= {batch.trials[slot].trial for slot in slots}
        at = time.time() if now is None else now
        listed = regrouped(batch, slots)
        name = hashlib.sha256(f"{batch.batch} again at {at} {slots}".encode()).hexdigest()[:12]
        made.append(replace(batch, batch=name, created_at=at, trials=listed, spent={}, cut_short=[], avoid=[]))
    return made[::-1]


def bad_nodes(results_dir: Path, trials: Sequence[str]) -> list[str]:
    """Nodes on which the last attempt of one of these trials failed in a way that lies with the node."""
    found: set[str] = set()
    for trial in trials:
        for run_dir in attempt_dirs(results_dir, trial)[-1:]:
            record, spec = read_attempt(run_dir), read_spec(run_dir)
            if record is None or spec is None:
                continue
            outcome = judge(record, spec)
            if outcome.cause in BAD_NODE_CAUSES:
                found |= hosts_of(outcome, spec)
    return sorted(found)


def _slots(batch: Batch, wanted: Collection[str]) -> list[int]:
    """The first position of each wanted trial: a control that opened a batch stands in it once."""
    slots: dict[str, int] = {}
    for slot, trial in enumerate(batch.trials):
        if trial.trial in wanted and (trial.trial not in slots or trial.role == ROLE_CONTROL_FIRST):
            slots.setdefault(trial.trial, slot)
    return sorted(slots.values())
