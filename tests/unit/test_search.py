"""A search as a driver works it: one trial at a time, by what the ones before brought."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import recorded

from orchestrator.cli.main import main
from orchestrator.cli.run import _say_interrupted, _say_left_out
from orchestrator.config.compose import compose
from orchestrator.config.multirun import Composed
from orchestrator.dispatch.liveness import DRIVER_FILE, RUNNING, CurrentTrial, DriverState, take_driver_lock
from orchestrator.dispatch.search import SEARCH_FILE, Searching, carry_search, read_decisions, write_search
from orchestrator.dispatch.submit import live_batches
from orchestrator.plan.candidate import trial_config
from orchestrator.plan.finding import Finding, Kind
from orchestrator.plan.modes import expand_mode
from orchestrator.plan.plan import SEARCH_RULE, Plan, PlannedTrial, Status
from orchestrator.records import layout
from orchestrator.records.jsonfile import decode, read_json, write_json
from orchestrator.records.spec import Batch
from orchestrator.report.search import decision_lines
from orchestrator.select.search import Search, Searched, Tried, decide, gpu_hours
from orchestrator.store.collect import collect
from orchestrator.store.database import default_url, open_store
from orchestrator.store.plans import PlannedRow, new_plan, record_plan

NAMES = {"[]": [], "[moe_act]": ["moe_act"], "[core_attn,moe]": ["core_attn", "moe"]}
TRIALS = dict(zip(NAMES, ("a" * 20, "b" * 20, "c" * 20), strict=True))


@cache
def config_of(name: str) -> dict[str, Any]:
    return trial_config(compose(["recompute=control", f"recompute_modules={name}", "model=tiny_mla_moe"]))


def searched(name: str, **more: Any) -> Searched:
    return Searched(TRIALS[name], name, name == "[]", 2, config_of(name), **more)


def search(**more: Any) -> Search:
    return Search("demo", [searched(name) for name in NAMES], **more)


def predicted(name: str) -> int:
    from orchestrator.predict.memory import predict_memory
    from orchestrator.predict.read import read_job

    return predict_memory(read_job(searched(name).config).job).hottest.peak


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    results = tmp_path / "results"
    layout.make_private_dir(results)
    trials = [replace(recorded.batch_trial(TRIALS[name], modules), name=name) for name, modules in NAMES.items()]
    made = recorded.batch(results, trials)
    recorded.write_batch(results, made)
    return made


def searching(batch: Batch, given: Search) -> Searching:
    folder = layout.batch_dir(Path(batch.results_dir), batch.batch)
    write_search(folder, given)
    found = Searching.of(folder, batch)
    assert found is not None
    return found


def ran(batch: Batch, slot: int, peak: int, ms: float) -> None:
    trial = batch.trials[slot]
    ranks = [recorded.rank_record(trial.trial, rank, base=peak, ms=ms) for rank in range(2)]
    recorded.write_attempt(Path(batch.results_dir), trial, ranks)


def test_control_runs_first_and_alone(batch: Batch) -> None:
    found = searching(batch, search())
    assert found.held([0, 1, 2], busy=False) == {1, 2}
    assert found.held([0, 1, 2], busy=True) == {0, 1, 2}
    assert not found.done


def test_a_control_that_fits_ends_the_search(batch: Batch) -> None:
    found = searching(batch, search(target=10**12))
    found.held([0, 1, 2], busy=False)
    ran(batch, 0, predicted("[]"), 100.0)
    assert found.held([1, 2], busy=False) == {1, 2}
    assert found.done
    folder = layout.batch_dir(Path(batch.results_dir), batch.batch)
    first, last = read_decisions(folder)
    assert (first.next, last.next, last.answer) == ("[]", None, "[]")
    assert {one.name for one in last.skipped} == {"[moe_act]", "[core_attn,moe]"}
    assert any("not tried  [core_attn,moe]" in line for line in decision_lines("demo", [first, last]))
    (count,) = [line for line in decision_lines("demo", [first, last], named=False) if "not tried" in line]
    assert f"{len(last.skipped)} candidate" in count
    assert "`compare demo`" in count
    assert len(decision_lines("demo", [first, last, first], named=False)) == 1, (
        "searched again: what came before is past"
    )


def test_without_a_fit_the_next_is_what_should_meet_the_target(batch: Batch) -> None:
    found = searching(batch, search(target=predicted("[core_attn,moe]")))
    trial = batch.trials[0]
    ranks = [recorded.out_of_memory(recorded.rank_record(trial.trial, rank)) for rank in range(2)]
    recorded.write_attempt(Path(batch.results_dir), trial, ranks)
    assert found.held([1, 2], busy=False) == {1}
    assert not found.done
    (decision,) = read_decisions(layout.batch_dir(Path(batch.results_dir), batch.batch))
    assert "should meet the target" in decision.reason
    assert "will not fit" in decision.skipped[0].why


def test_a_driver_that_starts_again_decides_the_same_and_says_it_once(batch: Batch) -> None:
    given = search(target=10**12)
    ran(batch, 0, predicted("[]"), 100.0)
    for _ in range(2):
        found = searching(batch, given)
        assert found.held([1, 2], busy=False) == {1, 2}
    assert len(read_decisions(layout.batch_dir(Path(batch.results_dir), batch.batch))) == 1


def test_what_earlier_commands_found_is_not_tried_again() -> None:
    known = {TRIALS["[]"]: Tried("OOM-fwd")}
    decision = decide(search(known=known, target=predicted("[]")), {})
    assert decision.next not in (None, "[]")


def test_a_trial_that_was_cancelled_is_not_waited_for(batch: Batch) -> None:
    found = searching(batch, search())
    found.held([1, 2], busy=False)
    (decision,) = read_decisions(layout.batch_dir(Path(batch.results_dir), batch.batch))
    assert decision.next != "[]"


def test_a_budget_ends_a_search_and_says_so() -> None:
    def on_gpus(one: Searched) -> Searched:
        trainer = {**one.config["trainer"], "name": "bridge"}
        model = {**one.config["model"]}
        return replace(one, config={**one.config, "trainer": trainer, "model": model}, seconds=360.0)

    given = search(target=1)
    candidates = [on_gpus(one) for one in given.candidates]
    tried = {TRIALS["[]"]: Tried("OOM-fwd", seconds=3600.0)}
    given = replace(given, candidates=candidates, hours_left=0.1)
    assert gpu_hours(given, tried) == 2.0
    decision = decide(given, {})
    assert decision.done
    assert "0.20 GPU-hours and 0.10 are left" in decision.reason


def composed(*words: str) -> list[Composed]:
    return [Composed("one", words, compose(["recompute=control", "study.mode=escalate", *words]))]


def test_a_single_request_is_searched_over_small_sets_and_full_recompute() -> None:
    names = [one.name for one in expand_mode(composed("model=tiny_dense", "parallelism=single"))]
    assert names[0] == "[]"
    assert "[mlp]" in names
    assert names[-1] == "full uniform 1"


def test_a_search_over_given_candidates_starts_from_their_control() -> None:
    given = [*composed("recompute_modules=[mlp]"), *composed("recompute_modules=[core_attn]")]
    names = [one.name for one in expand_mode(given)]
    assert names == ["[]", "one", "one"]


def test_status_and_compare_show_what_a_search_decided(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(batch.results_dir).parent)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    found = searching(batch, search(target=10**12))
    found.held([0, 1, 2], busy=False)
    ran(batch, 0, predicted("[]"), 100.0)
    found.held([1, 2], busy=False)
    for verb in ("status", "compare"):
        assert main([verb, "demo"]) == 0
        shown = capsys.readouterr().out
        assert "search  demo  tries []: control first" in shown
        assert "search  demo  ends: [] fits" in shown
        assert "not tried  [core_attn,moe]: " in shown
        assert main([verb, "demo", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["decisions"]["demo"][-1]["answer"] == "[]"


def test_what_a_search_left_out_is_no_row_that_waits(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was planned, it never ran, and nothing will run it: `status` says so, and tables do not list it."""
    results = Path(batch.results_dir)
    monkeypatch.chdir(results.parent)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    rows = [PlannedRow(TRIALS[name], name, "mcore_cpu", 2, searched(name).config) for name in NAMES]
    with open_store(default_url(results), write=True) as store:
        record_plan(store, results, new_plan("demo", rows, {"mode": "escalate"}))
    found = searching(batch, search(target=10**12))
    found.held([0, 1, 2], busy=False)
    ran(batch, 0, predicted("[]"), 100.0)
    assert main(["status", "demo", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["studies"][0]["states"].get("left-out") is None
    found.held([1, 2], busy=False)
    assert main(["status", "demo", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["studies"][0]["states"]["left-out"] == 2
    assert {one["name"] for one in after["trials"] if one["state"] == "left-out"} == {"[moe_act]", "[core_attn,moe]"}
    assert main(["compare", "demo"]) == 0
    table = capsys.readouterr().out
    assert "not run yet" not in table
    assert "not tried  [core_attn,moe]: cannot be cheaper" in table
    assert main(["recommend", "demo", "--target-gb", "1000"]) == 0
    answered = capsys.readouterr().out
    assert "study demo: target 1000 GB" in answered
    assert "not tried  2 candidates; `compare demo` and --json say why of each" in answered


def test_a_follow_up_job_gets_the_search_with_what_was_found_and_spent(batch: Batch) -> None:
    given = search(target=10**12, hours_left=1.0)
    candidates = [replace(one, config={**one.config, "trainer": {"name": "bridge"}}) for one in given.candidates]
    searching(batch, replace(given, candidates=candidates))
    ran(batch, 0, predicted("[]"), 100.0)
    rest = replace(batch, batch="further", trials=batch.trials[1:])
    carry_search(batch, [1, 2], rest)
    handed = decode(Search, read_json(layout.batch_dir(Path(batch.results_dir), "further") / SEARCH_FILE), "search")
    assert set(handed.known) == {TRIALS["[]"]}
    assert handed.known[TRIALS["[]"]].label == "pass"
    assert handed.hours_left is not None
    assert 0 <= handed.hours_left < 1.0
    assert handed.candidates == candidates


def test_a_job_without_a_search_hands_none_over(batch: Batch) -> None:
    rest = replace(batch, batch="further")
    carry_search(batch, [1, 2], rest)
    assert not layout.batch_dir(Path(batch.results_dir), "further").exists()


def test_a_candidate_that_another_batch_has_is_not_waited_for(batch: Batch) -> None:
    """Without its trial here, a driver could only wait for ever, or end without having asked for the others."""
    without = replace(batch, trials=batch.trials[1:])
    folder = layout.batch_dir(Path(batch.results_dir), batch.batch)
    write_search(folder, search())
    found = Searching.of(folder, without)
    assert found is not None
    assert found.held([0, 1], busy=False) != {0, 1}
    (decision,) = read_decisions(folder)
    assert decision.next in ("[moe_act]", "[core_attn,moe]")


def test_only_what_a_search_runs_now_is_sure_to_run(batch: Batch) -> None:
    """Another study's command is told so, and runs what the search left out once that is over."""
    results = Path(batch.results_dir)
    folder = layout.batch_dir(results, batch.batch)
    write_search(folder, search())
    lock = take_driver_lock(folder)
    assert lock is not None
    try:
        (live,) = live_batches(results)
        assert live.undecided == set(TRIALS.values())
        running = CurrentTrial(TRIALS["[]"], "001", "[]", "control-first", 0.0, "/nowhere", "/nowhere")
        said = DriverState(batch.batch, 1, 1, "here", 0.0, 0.0, RUNNING, 0, 3, [running], list(TRIALS.values()))
        write_json(folder / DRIVER_FILE, said)
        (live,) = live_batches(results)
        assert live.open_trials == set(TRIALS.values())
        assert live.undecided == set(TRIALS.values()) - {TRIALS["[]"]}
        (folder / SEARCH_FILE).unlink()
        (live,) = live_batches(results)
        assert not live.undecided
    finally:
        os.close(lock)
    assert not live_batches(results)


def test_a_command_that_waited_for_a_search_names_what_that_left_out(
    batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its trials that have a result by then nothing is said."""
    ran(batch, 0, 10**6, 100.0)
    entries = [
        PlannedTrial(trial, name, {}, 0, Status.KNOWN, (Finding(SEARCH_RULE, Kind.NOTE, "it waits"),))
        for name, trial in TRIALS.items()
    ]
    results = Path(batch.results_dir)
    with open_store(default_url(results), write=True) as store:
        collect(store, results)
        _say_left_out(store, Plan("second", tuple(entries)))
        assert capsys.readouterr().err == (
            "a search has left out [moe_act], [core_attn,moe]: the same command runs that now\n"
        )
        _say_left_out(store, Plan("second", ()))
        assert capsys.readouterr().err == ""


def test_an_interrupted_command_counts_what_ended_and_what_did_not(
    batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(batch, 0, 10**6, 100.0)
    entries = [PlannedTrial(trial, name, {}, 0, Status.NEW) for name, trial in TRIALS.items()]
    results = Path(batch.results_dir)
    with open_store(default_url(results), write=True) as store:
        collect(store, results)
        _say_interrupted(store, Plan("demo", tuple(entries)))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "interrupted: study demo, 3 trials: 1 pass, 2 without an outcome"
    assert said[1] == "`compare demo` shows what was measured"
