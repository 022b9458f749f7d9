"""Which trials share a job, and the controls that open and close it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dispatch.batch import Ask, BatchSettings, Controls, make_batches
from orchestrator.dispatch.followup import regrouped
from orchestrator.plan.candidate import Candidate, trial_id
from orchestrator.records.spec import ROLE_CONTROL_FIRST, ROLE_CONTROL_LAST, ROLE_TRIAL

SETTINGS = BatchSettings(study="s", results_dir="/results", created_at=1.0, launcher={"kind": "local"})


def ask(modules: list[str] | None, *, world_size: int = 2, model: str = "a", repeat: int = 0, **trainer: Any) -> Ask:
    request = {
        "recompute_granularity": None if modules is None else "selective",
        "recompute_modules": modules,
        "recompute_method": None,
        "recompute_num_layers": None,
        "model": {"name": model, "hidden_size": len(model)},
        "parallelism": {"world_size": world_size},
        "training": {"train_iters": 6, "steady_window": [3, 6]},
        "trainer": {"name": "mcore_cpu", **trainer},
        "cluster": {"environment": {"A": "1"}},
    }
    candidate = Candidate(f"{model}-{modules}", request)
    return Ask(trial_id(candidate, repeat), candidate, repeat)


def roles(asks: list[Ask], **changes: Any) -> list[list[tuple[str, str]]]:
    settings = BatchSettings(**{**SETTINGS.__dict__, **changes})
    return [[(trial.role, trial.name) for trial in batch.trials] for batch in make_batches(asks, settings)]


def test_a_control_that_was_asked_for_opens_the_job_and_runs_once() -> None:
    assert roles([ask(["core_attn"]), ask([])]) == [[(ROLE_CONTROL_FIRST, "a-[]"), (ROLE_TRIAL, "a-['core_attn']")]]


def test_a_control_that_was_not_asked_for_is_added_under_its_own_identity() -> None:
    (batch,) = make_batches([ask(["core_attn"])], SETTINGS)
    assert batch.trials[0].role == ROLE_CONTROL_FIRST
    assert batch.trials[0].trial == ask([]).trial
    assert batch.trials[0].config["recompute_modules"] == []


def test_what_is_offloaded_shares_a_control_that_neither_offloads_nor_recomputes() -> None:
    offloaded = ask(None)
    model = {**offloaded.candidate.request["model"], "cpu_offloading": True, "cpu_offloading_num_layers": 2}
    candidate = Candidate("offload", {**offloaded.candidate.request, "model": model})
    asks = [Ask(trial_id(candidate), candidate), ask(["core_attn"])]
    (batch,) = make_batches(asks, SETTINGS)
    assert [trial.role for trial in batch.trials] == [ROLE_CONTROL_FIRST, ROLE_TRIAL, ROLE_TRIAL]
    assert batch.trials[0].trial == ask([]).trial
    assert batch.trials[1].config["model"]["cpu_offloading"] is True


def test_trials_whose_control_is_refused_run_without_one_and_others_with_theirs() -> None:
    alone, held = [ask(["mlp"]), ask(["moe"]), ask(["core_attn"]), ask(["moe_act"])], ask(["mlp"], model="bb")
    refused = Controls(refused=frozenset({alone[0].candidate.match_key}))
    (batch,) = make_batches([held, *alone], replace(SETTINGS, controls=refused))
    assert [trial.role for trial in batch.trials] == [*[ROLE_TRIAL] * 4, ROLE_CONTROL_FIRST, ROLE_TRIAL]
    assert regrouped(batch, {1, 5}) == [batch.trials[1], batch.trials[4], batch.trials[5]], (
        "held against no other key's"
    )


def test_the_control_among_the_candidates_opens_further_jobs_too_however_it_is_spelt() -> None:
    """`recompute_method: recipe` acts no more than null with `selective`, but is asked for by another trial."""
    asked = ask([])
    request = {**asked.candidate.request, "recompute_method": "recipe", "recompute_num_layers": "recipe"}
    candidate = Candidate("as asked", request)
    control = Ask(trial_id(candidate), candidate)
    assert control.trial != asked.trial
    two = make_batches([ask(["mlp"]), ask(["moe"]), control], replace(SETTINGS, trials_per_batch=1))
    assert [batch.trials[0].trial for batch in two] == [control.trial] * 3
    (later,) = make_batches([ask(["mlp"])], replace(SETTINGS, controls=Controls(measured=(control,))))
    assert [(trial.role, trial.trial) for trial in later.trials] == [
        (ROLE_CONTROL_FIRST, control.trial),
        (ROLE_TRIAL, ask(["mlp"]).trial),
    ]
    (other,) = make_batches([ask(["mlp"], model="bb")], replace(SETTINGS, controls=Controls(measured=(control,))))
    assert other.trials[0].name == "control"


def test_four_trials_of_a_key_are_closed_by_its_control() -> None:
    four = [ask([]), ask(["mlp"]), ask(["core_attn"]), ask(["moe"])]
    (jobs,) = roles(four)
    assert [role for role, _ in jobs] == [ROLE_CONTROL_FIRST, *[ROLE_TRIAL] * 3, ROLE_CONTROL_LAST]
    (jobs,) = roles(four[:3])
    assert ROLE_CONTROL_LAST not in [role for role, _ in jobs]


def test_trials_with_different_models_each_get_their_own_control() -> None:
    (jobs,) = roles([ask(["mlp"]), ask(["mlp"], model="bb"), ask(["moe"])])
    assert [name for _, name in jobs] == ["control", "a-['mlp']", "a-['moe']", "control", "bb-['mlp']"]


def test_a_memory_limit_is_part_of_what_a_control_must_share() -> None:
    (jobs,) = roles([ask(["mlp"], memory_limit_gb=1.0), ask(["mlp"], memory_limit_gb=2.0)])
    assert [role for role, _ in jobs].count(ROLE_CONTROL_FIRST) == 2


def test_world_sizes_get_jobs_of_their_own_unless_one_machine_runs_them_all() -> None:
    asks = [ask(["mlp"]), ask(["mlp"], world_size=4)]
    assert len(roles(asks)) == 2
    assert len(roles(asks, one_batch=True)) == 1


def test_a_cap_on_trials_per_job_does_not_count_controls() -> None:
    jobs = roles([ask(["mlp"]), ask(["moe"]), ask(["core_attn"])], trials_per_batch=2)
    assert [[role for role, _ in job] for job in jobs] == [
        [ROLE_CONTROL_FIRST, ROLE_TRIAL, ROLE_TRIAL],
        [ROLE_CONTROL_FIRST, ROLE_TRIAL],
    ]


def test_what_ranks_need_is_carried_over_in_their_units() -> None:
    (batch,) = make_batches([ask(["mlp"], memory_limit_gb=0.5, stall_seconds=7, time_limit=9)], SETTINGS)
    trial = batch.trials[1]
    assert (trial.memory_limit_bytes, trial.stall_seconds, trial.time_limit_seconds) == (500_000_000, 7.0, 9.0)
    assert (trial.steady_window, trial.train_iters, trial.environment) == ((3, 6), 6, {"A": "1"})


def test_a_request_without_a_world_size_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"parallelism\.world_size"):
        make_batches([ask(["mlp"], world_size=0)], SETTINGS)


modules = st.lists(st.sampled_from(["mlp", "moe", "core_attn", "layernorm"]), unique=True, max_size=4)
grids = st.lists(st.builds(ask, modules, world_size=st.sampled_from([2, 4]), model=st.sampled_from(["a", "bb"])))


@given(grids, st.one_of(st.none(), st.integers(1, 5)))
def test_every_trial_runs_in_exactly_one_job_and_behind_its_control(asks: list[Ask], cap: int | None) -> None:
    unique = list({item.trial: item for item in asks}.values())
    batches = make_batches(unique, BatchSettings(**{**SETTINGS.__dict__, "trials_per_batch": cap}))
    wanted = {item.trial: item.candidate.is_control for item in unique}
    ordinary = [trial.trial for batch in batches for trial in batch.trials if trial.role == ROLE_TRIAL]
    opening = [trial.trial for batch in batches for trial in batch.trials if trial.role == ROLE_CONTROL_FIRST]
    assert sorted(ordinary) == sorted(trial for trial, control in wanted.items() if not control)
    assert {trial for trial, control in wanted.items() if control} <= set(opening)
    assert all(batch.trials[0].role == ROLE_CONTROL_FIRST for batch in batches)
    assert len({batch.batch for batch in batches}) == len(batches)
