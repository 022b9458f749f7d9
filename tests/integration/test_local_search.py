"""A driver of this machine that decides which of its trials to run."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.config.compose import compose
from orchestrator.dispatch.attempt import attempt_dirs
from orchestrator.dispatch.liveness import FINISHED, read_driver_state
from orchestrator.dispatch.search import read_decisions, write_search
from orchestrator.dispatch.submit import live_batches, start_driver, wait_for_end, write_batch
from orchestrator.plan.candidate import trial_config
from orchestrator.records.spec import ROLE_CONTROL_FIRST, Batch, BatchTrial
from orchestrator.select.search import Search, Searched

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fake_trainer")]

NAMES = ("[]", "[moe_act]", "[moe]")


def id_of(name: str) -> str:
    return f"{NAMES.index(name):020x}"


def searched(name: str) -> Searched:
    request = compose(["recompute=control", f"recompute_modules={name}", "model=tiny_mla_moe"])
    return Searched(id_of(name), name, name == "[]", 2, trial_config(request))


def ran(results: Path, failing: Sequence[str] = ()) -> tuple[list[str], Path]:
    trials = []
    for name in NAMES:
        fake = {"stage": "forward", "iteration": 1, "what": "raise"} if name in failing else {}
        role = ROLE_CONTROL_FIRST if name == "[]" else "trial"
        trials.append(
            BatchTrial(id_of(name), name, role, "fake_trainer:train", 2, {"fake": fake}, (1, 2), train_iters=2)
        )
    batch_dir = write_batch(Batch("b1", "demo", time.time(), str(results), trials, {"kind": "local"}))
    write_search(batch_dir, Search("demo", [searched(name) for name in NAMES]))
    start_driver(batch_dir)
    assert wait_for_end(results, "b1", 60), (batch_dir / "driver.log").read_text()
    return [name for name in NAMES if attempt_dirs(results, id_of(name))], batch_dir


def test_nothing_runs_after_the_answer_is_certain(tmp_path: Path) -> None:
    started, batch_dir = ran(tmp_path / "results")
    assert started == ["[]"]
    assert not live_batches(tmp_path / "results"), "what it left out waits for it no more"
    state = read_driver_state(batch_dir)
    assert state is not None
    assert (state.state, state.done, state.open_trials) == (FINISHED, 3, [])
    assert read_decisions(batch_dir)[-1].answer == "[]"


def test_a_failed_control_is_followed_by_the_narrowest_candidate(tmp_path: Path) -> None:
    started, batch_dir = ran(tmp_path / "results", failing=["[]"])
    assert started[0] == "[]"
    decisions = read_decisions(batch_dir)
    assert [one.next for one in decisions][:2] == ["[]", started[1]]
    assert decisions[-1].answer in started[1:]
    assert all(json.loads(line)["reason"] for line in (batch_dir / "decisions.jsonl").read_text().splitlines())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["study.repeats=2"], "leave study.repeats at 1"),
        (["-m", "training.seq_length=32,64"], "make a study of each job"),
    ],
)
def test_what_a_search_cannot_do_is_refused_before_anything_is_kept(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "study.mode=escalate", "recompute=control", "model=tiny_dense"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
