"""Real Megatron Core under a driver of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.compose import compose
from orchestrator.dispatch.attempt import attempt_dirs, judge, rank_records, read_attempt, read_spec
from orchestrator.dispatch.batch import Ask
from orchestrator.dispatch.submit import local_settings, submit_local, wait_for_end
from orchestrator.plan.candidate import Candidate, trial_id

pytestmark = pytest.mark.integration

SMALL = ["training.train_iters=3", "training.steady_window=[2,3]"]


def start(results: Path, *overrides: str) -> tuple[str, str]:
    request = compose([*SMALL, "recompute=control", *overrides, f"results_dir={results}"])
    candidate = Candidate("control", request)
    ask = Ask(trial_id(candidate), candidate)
    (batch,) = submit_local([ask], local_settings(request, "study", results)).batches
    return batch.batch, ask.trial


def outcome(results: Path, trial: str) -> Any:
    (folder,) = attempt_dirs(results, trial)
    record, spec = read_attempt(folder), read_spec(folder)
    assert record is not None
    assert spec is not None
    return judge(record, spec)


def test_two_studies_side_by_side_do_not_meet(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    started = [start(folder) for folder in folders]
    for folder, (batch, trial) in zip(folders, started, strict=True):
        assert wait_for_end(folder, batch, 120)
        assert outcome(folder, trial).label == "pass"
    first, second = (
        rank_records(attempt_dirs(folder, trial)[0]) for folder, (_, trial) in zip(folders, started, strict=True)
    )
    losses = [[row.loss for record in ranks.values() for row in record.iterations] for ranks in (first, second)]
    assert losses[0] == losses[1]
    assert any(loss is not None for loss in losses[0])


def test_a_rank_that_hangs_is_named_whichever_rank_lost_patience_first(tmp_path: Path) -> None:
    fault = "+trainer.fault={stage:backward,kind:sleep,rank:1,iteration:2}"
    batch, trial = start(tmp_path, "trainer.stall_seconds=15", "cluster.retries=0", fault)
    assert wait_for_end(tmp_path, batch, 120)
    found = outcome(tmp_path, trial)
    assert (found.label, found.rank, found.stage.value) == ("failed:hang", 1, "backward")
    assert found.rules == ("rank.stalled", "hang.not-waiting")
