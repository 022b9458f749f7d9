"""Trials that a command leaves to another one, which runs them already."""

from __future__ import annotations

from pathlib import Path

import pytest
import recorded

from orchestrator.cli.run import _say_undone
from orchestrator.cli.running import Running
from orchestrator.plan.plan import Plan, PlannedTrial, Status
from orchestrator.store.collect import collect
from orchestrator.store.database import default_url, open_store

MLP, MOE = "a" * 20, "b" * 20


@pytest.mark.parametrize(
    ("ran", "said"),
    [
        ([MLP, MOE], ""),
        ([MLP], "another command, which was to run moe, ended without: the same command runs that now\n"),
        ([], "another command, which was to run mlp, moe, ended without: the same command runs that now\n"),
    ],
)
def test_a_command_that_waited_for_another_one_names_what_that_did_not_run(
    tmp_path: Path, ran: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was killed, or its user cancelled it."""
    results = tmp_path / "results"
    trials = [recorded.batch_trial(MLP, ["mlp"]), recorded.batch_trial(MOE, ["moe"])]
    recorded.write_batch(results, recorded.batch(results, trials))
    for trial in trials:
        if trial.trial in ran:
            recorded.write_attempt(results, trial)
    names = {MLP: "mlp", MOE: "moe"}
    entries = tuple(PlannedTrial(trial, name, {}, 0, Status.KNOWN) for trial, name in names.items())
    with open_store(default_url(results), write=True) as store:
        collect(store, results)
        plan = Plan("demo", entries)
        assert _say_undone(store, plan, Running(others=["b1"], waited={MLP, MOE})) is bool(said)
        assert capsys.readouterr().err == said
        assert not _say_undone(store, plan, Running())
