"""GPU-hours that studies have spent, and those that a known result saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import recorded

from orchestrator.records import layout
from orchestrator.records.spec import BatchTrial
from orchestrator.report.hours import hours_lines
from orchestrator.store.collect import collect
from orchestrator.store.database import Store, open_store
from orchestrator.store.hours import StudyHours, study_hours
from orchestrator.store.plans import PlannedRow, new_plan, record_plan

HOUR = 3600.0


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    layout.make_private_dir(folder)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/db.sqlite", write=True) as opened:
        yield opened


def run_trial(results: Path, trial: BatchTrial, *, hours: float | None, attempt: str = "001") -> None:
    ended = None if hours is None else recorded.START + hours * HOUR
    record = replace(recorded.attempt_record(trial, attempt=attempt), ended_at=ended)
    ranks = [recorded.rank_record(trial.trial, rank, world_size=8) for rank in range(8)] if hours else []
    recorded.write_attempt(results, trial, ranks, record=record)


def on_gpus(digit: str, modules: list[str]) -> BatchTrial:
    return replace(recorded.batch_trial(digit * 20, modules, world_size=8), trainer="bridge")


def hours_of(store: Store, now: float) -> dict[str, tuple[float, float]]:
    with store.reading() as connection:
        return {one.study: (one.spent, one.saved) for one in study_hours(connection, now)}


def test_ranks_times_time_is_spent_and_what_runs_counts_until_now(store: Store, results: Path) -> None:
    ended, going, cpu = on_gpus("a", []), on_gpus("b", ["mlp"]), recorded.batch_trial("c" * 20, ["moe"])
    recorded.write_batch(results, recorded.batch(results, [ended, going, cpu]))
    run_trial(results, ended, hours=0.5)
    run_trial(results, going, hours=None)
    collect(store, results)
    now = recorded.START + 0.25 * HOUR
    assert hours_of(store, now) == {"demo": (pytest.approx(8 * 0.75), 0.0)}


def test_a_study_that_uses_the_results_of_another_has_saved_them(store: Store, results: Path) -> None:
    trial = on_gpus("a", [])
    recorded.write_batch(results, recorded.batch(results, [trial]))
    run_trial(results, trial, hours=0.5)
    rows = [PlannedRow(trial.trial, trial.name, trial.trainer, 8, trial.config, status="known")]
    record_plan(store, results, new_plan("second", rows))
    collect(store, results)
    assert hours_of(store, recorded.START + HOUR) == {
        "demo": (pytest.approx(4.0), 0.0),
        "second": (0.0, pytest.approx(4)),
    }
    with store.reading() as connection:
        lines = hours_lines(study_hours(connection, recorded.START + HOUR, "second"))
    assert lines == ["GPU-hours  second  0 spent, 4 saved against running its whole grid"]


def test_what_a_search_left_out_is_saved_at_the_mean_of_what_it_ran() -> None:
    assert StudyHours("s", 6.0, 1.0, runs=3).without(2).saved == pytest.approx(5.0)
    assert StudyHours("s", 0.0, 1.0).without(2).saved == 1.0


def test_a_study_without_gpus_has_no_line(store: Store, results: Path) -> None:
    recorded.demo(results)
    collect(store, results)
    assert hours_of(store, recorded.START) == {}
    assert hours_lines([StudyHours("a\x1bb", 1.0, 0.0)]) == ["GPU-hours  a\\x1bb  1 spent"]
