"""Earlier runs of the same job are found, and those of another job are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from written_results import write_study

from orchestrator.analysis.siblings import Sibling, find_siblings
from orchestrator.store.collect import collect
from orchestrator.store.database import Store, default_url, open_store
from orchestrator.vocabulary import Stage


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    write_study(tmp_path, "study", [[], ["moe"]], batch="b1")
    with open_store(default_url(tmp_path), write=True) as opened:
        collect(opened, tmp_path)
        yield opened


def request(modules: list[str], layers: int = 2) -> dict[str, Any]:
    return {
        "recompute_granularity": "selective",
        "recompute_modules": modules,
        "recompute_method": None,
        "recompute_num_layers": None,
        "model": {"num_layers": layers},
        "training": {"seq_length": 8},
        "trainer": {"name": "mcore_cpu"},
    }


def siblings(store: Store, *requests: dict[str, Any]) -> list[Sibling]:
    with store.reading() as connection:
        return find_siblings(connection, list(requests))


def test_a_candidate_never_run_learns_from_the_control_of_its_job(store: Store) -> None:
    (found,) = siblings(store, request(["layernorm"]))
    assert found.control_peak == 1_000_001
    assert found.control_stages[Stage.FORWARD] == 1_000_001
    assert found.control_step_ms == pytest.approx(10.025)
    assert found.effective is not None
    assert found.effective["model"]["num_layers"] == 2


def test_a_job_of_another_model_learns_nothing(store: Store) -> None:
    other, same = siblings(store, request([], layers=4), request([]))
    assert other == Sibling()
    assert same.control_peak is not None


def test_without_a_control_only_the_configuration_is_known(tmp_path: Path) -> None:
    write_study(tmp_path, "study", [["moe"]], batch="b1")
    with open_store(default_url(tmp_path), write=True) as store:
        collect(store, tmp_path)
        (found,) = siblings(store, request([]))
    assert found.control_peak is None
    assert found.effective is not None
