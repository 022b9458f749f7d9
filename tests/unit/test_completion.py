from __future__ import annotations

import pytest
import recorded

from orchestrator.cli.main import main
from orchestrator.cli.verbs import VERBS
from orchestrator.records import layout

PROGRAMS = ("recompute-orchestrator", "python -m orchestrator")


@pytest.fixture
def completed(monkeypatch, capsys):
    def complete(line: str) -> set[str]:
        monkeypatch.setenv("COMP_LINE", line)
        assert main(["-sc", "query=bash"]) == 0
        return set(capsys.readouterr().out.split())

    return complete


@pytest.mark.parametrize("program", PROGRAMS)
def test_verbs_complete_beside_groups(completed, program):
    assert {"recommend", "report", "retry", "recompute="} <= completed(f"{program} re")
    assert set(VERBS) <= completed(f"{program} ")
    assert not set(VERBS) & completed(f"{program} model=tiny_dense ")


@pytest.mark.parametrize("program", PROGRAMS)
def test_groups_files_and_keys_complete_also_after_flags_and_overrides(completed, program):
    assert "model=tiny_dense" in completed(f"{program} model=tiny_d")
    assert "training.seq_length=" in completed(f"{program} -m model=tiny_dense training.seq")


@pytest.mark.parametrize("program", PROGRAMS)
def test_options_of_a_verb_complete(completed, program):
    assert completed(f"{program} recommend demo --ta") == {"--target-gb"}
    assert {"--output", "--markdown", "--db", "--json"} <= completed(f"{program} report ")


def test_the_values_of_an_option_complete(completed):
    assert completed("recompute-orchestrator export demo --format ") == {
        "csv",
        "json",
        "parquet",
        "markdown",
        "skill-card",
    }
    assert completed("recompute-orchestrator recommend --objective m") == {"memory"}
    assert completed("recompute-orchestrator recommend --target-gb ") == set()
    assert {"path", "upgrade"} <= completed("recompute-orchestrator db ")


def test_studies_complete_behind_verbs_that_ask_about_one(completed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    assert completed("recompute-orchestrator compare d") == set(), "there is no database"
    layout.make_private_dir(tmp_path / "results")
    recorded.demo(tmp_path / "results")
    assert main(["collect"]) == 0
    assert completed("recompute-orchestrator compare d") >= {"demo"}
    assert {"demo", "--json"} <= completed("recompute-orchestrator retry ")
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    assert "demo" not in completed("recompute-orchestrator status ")
    assert completed("recompute-orchestrator status --results elsewhere d") == {"demo"}
    assert "demo" not in completed("recompute-orchestrator classify ")


def test_a_list_is_completed_as_a_value_and_not_as_a_group_of_keys(completed):
    assert completed("recompute-orchestrator recompute_mod") == {"recompute_modules="}
    assert "training.steady_window=" in completed("recompute-orchestrator training.st")
    assert "cluster.setup=" in completed("recompute-orchestrator cluster.set")
    assert completed("recompute-orchestrator cluster.env") == {"cluster.environment."}
