"""A search in a job: its driver decides, a follow-up job goes on with it, and the next command knows what it found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bed import Bed, ask, attempts, hanging, job_of, labels, request, running_trial, until, wait_over

from orchestrator.config.compose import compose
from orchestrator.dispatch.handover import hand_over
from orchestrator.dispatch.liveness import FINISHED, read_driver_state
from orchestrator.dispatch.search import read_decisions
from orchestrator.dispatch.submit import Submitted, live_batches
from orchestrator.plan.candidate import trial_config
from orchestrator.records import layout
from orchestrator.select.search import Search, Searched

pytestmark = pytest.mark.integration

NAMES = {"control": "[]", "moe_act": "[moe_act]", "moe": "[moe]"}


def searched(trial: str, name: str) -> Searched:
    """A candidate that can be predicted, while the trial itself is the fake trainer's."""
    config = trial_config(compose(["recompute=control", f"recompute_modules={NAMES[name]}", "model=tiny_mla_moe"]))
    return Searched(trial, name, name == "control", 4, config)


def submit_search(results: Path, fake: dict[str, Any] | None = None) -> tuple[Submitted, dict[str, str]]:
    os.environ["FAKE_TOLD"] = json.dumps(fake or {})
    asks = [ask(results, name) for name in NAMES]
    trials = {one.candidate.name: one.trial for one in asks}
    search = Search("study", [searched(one.trial, one.candidate.name) for one in asks])
    return hand_over(asks, request(results, "control"), "study", results, search=search), trials


def decisions(results: Path, batch: str) -> list[tuple[str | None, str | None]]:
    return [(one.next, one.answer) for one in read_decisions(layout.batch_dir(results, batch))]


def test_a_job_runs_no_more_than_its_search_needs(bed: Bed, results: Path) -> None:
    submitted, trials = submit_search(results)
    (batch,) = submitted.batches
    wait_over(results, batch.batch)
    assert decisions(results, batch.batch) == [("control", None), (None, "control")]
    assert {name: len(attempts(results, trial)) for name, trial in trials.items()} == {
        "control": 1,
        "moe_act": 0,
        "moe": 0,
    }
    state = read_driver_state(layout.batch_dir(results, batch.batch))
    assert state is not None
    assert (state.state, state.open_trials) == (FINISHED, [])
    assert not live_batches(results)


def test_a_follow_up_job_searches_on_with_what_the_first_one_found(bed: Bed, results: Path) -> None:
    fake = {"control": {"stage": "forward", "iteration": 1, "what": "raise"}, **hanging("moe_act")}
    submitted, trials = submit_search(results, fake=fake)
    first = submitted.batches[0].batch
    until(lambda: running_trial(results, first) == "moe_act")
    bed.expire(job_of(results, submitted), 60)  # the warning comes two minutes before
    wait_over(results, first, seconds=120)
    (next_one,) = until(lambda: [live for live in live_batches(results) if live.batch != first])
    until(lambda: running_trial(results, next_one.batch) == "moe_act")
    assert decisions(results, first) == [("control", None), ("moe_act", None)]
    assert decisions(results, next_one.batch) == [("moe_act", None)]
    assert len(attempts(results, trials["control"])) == 1, "the first job found out about it"
    assert labels(results, trials["moe"]) == []
