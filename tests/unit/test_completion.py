from __future__ import annotations

import pytest

from orchestrator.cli.main import main
from orchestrator.cli.verbs import VERBS

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
