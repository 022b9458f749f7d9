"""What a person reads of a plan before anything runs."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.compose import compose
from orchestrator.dispatch.slurm import executor
from orchestrator.dispatch.slurm.cluster import cluster_of, shape_of
from orchestrator.dispatch.slurm.parameters import job_parameters
from orchestrator.plan.candidate import Candidate, trial_id
from orchestrator.plan.forecast import forecasts
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.verdict import Verdict
from orchestrator.predict.fields import only_read
from orchestrator.report.plan import MOST_LISTED, as_json, cost_lines, costs, entry_lines, summary_line, whole
from orchestrator.report.scripts import planned_scripts

DATA = Path(__file__).parent.parent / "data"
REQUEST: dict[str, Any] = {
    "recompute_granularity": "selective",
    "recompute_modules": [],
    "recompute_method": None,
    "recompute_num_layers": None,
    "model": {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "attention_dropout": 0.0},
    "parallelism": {"tp": 1, "pp": 2, "vpp": None, "cp": 1, "ep": 1, "etp": None, "layout": None, "world_size": 2},
    "precision": {"params_dtype": "fp32"},
    "training": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 6, "steady_window": [4, 6]},
    "trainer": {"name": "mcore_cpu", "time_limit": None},
    "cluster": {"kind": "local"},
    "revisions": {},
}


def candidate(name: str, modules: Any, limit: float | None = None, seed: int = 0, **training: Any) -> Candidate:
    request = copy.deepcopy(REQUEST)
    request["recompute_modules"] = modules
    request["training"] |= training | {"seed": seed}
    request["trainer"]["time_limit"] = limit
    return Candidate(name, request)


def a_plan() -> Plan:
    control = candidate("control", [])
    asked = [
        control,
        candidate("core", ["core_attn"]),
        candidate("core again", None),
        candidate("odd batch", [], global_batch_size=5, micro_batch_size=2),
        candidate("odder batch", [], global_batch_size=7, micro_batch_size=2),
        candidate("typo", ["core_atn"]),
        candidate("experts", ["moe"]),
    ]
    verdicts = [Verdict(ok=True, open=("no GPU here",) if one.name == "core" else ()) for one in asked]
    return make_plan("demo", asked, known={trial_id(control): "OOM-fwd"}, verdicts=[*verdicts[:5], None, verdicts[6]])


def test_counts_come_first() -> None:
    assert whole(a_plan())[0] == (
        "study demo: 7 trials, 2 to run, 1 known already, 1 duplicate, 3 rejected, "
        "1 of those to run not fully judged here"
    )


def test_rejections_stand_under_their_rule_with_one_example() -> None:
    lines = whole(a_plan())
    at = lines.index("rejected by batch-divides (2): odd batch, odder batch")
    assert lines[at + 1].startswith("  odd batch: training.global_batch_size=5")
    assert "7" not in lines[at + 1]
    assert any(line.startswith("rejected by recompute-module-label (1): typo") for line in lines)


def test_known_duplicate_open_and_ineffective_trials_are_named_with_the_reason() -> None:
    text = "\n".join(whole(a_plan()))
    assert "known already (1): control (OOM-fwd)" in text
    assert "duplicate (1): core again: it asks for the same as core" in text
    assert "open: core: no GPU here" in text
    assert "warning (no effect, moe-label-without-experts): experts: " in text


def test_cost_is_ranks_and_time_at_most_or_says_that_no_limit_is_set() -> None:
    asked = [candidate("a", [], 1800.0), candidate("b", ["mlp"], 1800.0), candidate("c", [], 1800.0, seed=1)]
    plan = make_plan("s", asked, known={})
    assert cost_lines(plan) == ["would run 3 trials on 2 ranks, at most 0:30:00 each, 3 rank-hours in all"]
    assert "trainer.time_limit is not set" in cost_lines(make_plan("s", [candidate("a", [])], known={}))[0]
    recipe = copy.deepcopy(asked[0].request) | {"trainer": {"name": "bridge", "time_limit": 60.0}}
    recipe["parallelism"]["world_size"] = "recipe"
    recipe["model"]["recipe"] = "a.recipe"
    (cost,) = costs(make_plan("s", [Candidate("r", recipe)], known={}))
    assert (cost.ranks, cost.rank_hours) == (None, None)


def test_a_big_plan_is_summarised_and_its_json_is_whole() -> None:
    asked = [candidate(f"seed {seed}", [], seed=seed) for seed in range(MOST_LISTED + 60)]
    plan = make_plan("big", asked, known={})
    assert len(whole(plan)) < 10
    assert entry_lines(plan)[0].startswith("  to run on 2 ranks: 100 trials: seed 0, seed 1")
    assert len(as_json(plan)["trials"]) == 100


def test_scripts_stand_last_and_of_many_the_first() -> None:
    lines = whole(a_plan(), [(f"job {number}", "#!/bin/bash\nsrun x") for number in range(5)])
    assert lines[-1] == "--- and 2 more scripts like these"
    assert lines.count("srun x") == 3


def test_json_has_what_the_text_has() -> None:
    told = json.loads(json.dumps(as_json(a_plan(), [("job", "#!/bin/bash")]), allow_nan=False))
    assert told["counts"] == {"new": 2, "known": 1, "rejected": 3, "duplicate": 1, "candidates": 7, "open": 1}
    assert told["rejected_by"]["batch-divides"]["count"] == 2
    assert told["scripts"][0]["name"] == "job"
    assert told["trials"][0]["label"] == "OOM-fwd"


def test_names_cannot_act_on_the_terminal() -> None:
    plan = make_plan("a\x1b[2Jb", [candidate("c\nd", [])], known={})
    assert all("\x1b" not in line and "\n" not in line for line in whole(plan, [("n", "x\x1b[2J")]))


def test_repeats_are_counted_as_trials_of_candidates() -> None:
    plan = make_plan("s", [candidate("a", []), candidate("b", ["mlp"])], known={}, repeats=3)
    assert summary_line(plan) == "study s: 6 trials of 2 candidates, 6 to run"


def test_the_scripts_shown_are_those_that_submitit_submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = copy.deepcopy(REQUEST) | {"cluster": {"kind": "slurm", "account": "team", "gpus_per_node": 1, "retries": 0}}
    plan = make_plan("s", [Candidate("control", slurm)], known={})
    ((title, text),) = planned_scripts(plan, tmp_path)
    assert title == "batch-1: 1 trial, 2 nodes of 1 rank"
    assert "#SBATCH --account=team" in text

    monkeypatch.setattr(executor.SbatchOnce, "affinity", classmethod(lambda _: 2))
    cluster = cluster_of(slurm["cluster"])
    folder = tmp_path / "batches" / "batch-1" / "submitit"
    submitted = executor.SbatchOnce(folder, sys.executable, [])
    submitted.update_parameters(**job_parameters(cluster, shape_of(cluster, 2), "batch-1"))
    assert text == submitted._make_submission_file_text(submitted._submitit_command_str, "0")
    assert not (tmp_path / "results").exists()


def test_a_search_is_one_job_without_a_closing_control(tmp_path: Path) -> None:
    cluster = {"kind": "slurm", "gpus_per_node": 2, "trials_per_job": 2}
    asked = [
        Candidate(
            f"[{label}]", copy.deepcopy(REQUEST) | {"cluster": cluster, "recompute_modules": [label] if label else []}
        )
        for label in ("", "core_attn", "mlp", "layernorm")
    ]
    searched = planned_scripts(make_plan("s", asked, known={}, searched=True), tmp_path)
    assert [title for title, _ in searched] == ["batch-1: at most 4 trials, 1 node of 2 ranks"]
    assert len(planned_scripts(make_plan("s", asked, known={}), tmp_path)) == 2


def test_no_scripts_are_made_up_for_other_clusters_or_unknown_ranks(tmp_path: Path) -> None:
    assert planned_scripts(make_plan("s", [candidate("a", [])], known={}), tmp_path) == []
    recipe = copy.deepcopy(REQUEST) | {"cluster": {"kind": "slurm"}, "trainer": {"name": "bridge"}}
    recipe["parallelism"]["world_size"] = "recipe"
    assert planned_scripts(make_plan("s", [Candidate("a", recipe)], known={}), tmp_path) == []


def test_what_would_run_says_what_it_should_need() -> None:
    effective = json.loads((DATA / "h200_recorded_moonlight16L.jsonl").read_text().splitlines()[0])["effective"]
    request = copy.deepcopy(REQUEST) | {"model": {"recipe": "a.recipe"}, "precision": {}, "trainer": {"name": "bridge"}}
    request["parallelism"] = {"world_size": 1}
    request["training"] = {"train_iters": 10, "steady_window": [6, 10]}
    plan = make_plan(
        "h200", [Candidate("control", request)], known={}, verdicts=[Verdict(ok=True, effective=only_read(effective))]
    )
    predicted = forecasts(plan)
    # An H200 measured 69.27 GB and 73 s for the whole trial.
    assert ", 69.3" in entry_lines(plan, predicted)[0]
    assert "GPU-hours are expected" in cost_lines(plan, predicted)[1]
    told = as_json(plan, predicted=predicted)
    assert told["gpu_hours"]["low"] < 73 / 3600 < told["gpu_hours"]["high"]
    assert told["trials"][0]["predicted_bytes"]["expected"] == pytest.approx(69.27e9, rel=0.01)


def test_a_recipe_that_nobody_could_ask_has_hours_in_a_wide_range_and_no_memory() -> None:
    request = copy.deepcopy(REQUEST) | {"model": {"recipe": "a.recipe"}, "trainer": {"name": "bridge"}}
    plan = make_plan("r", [Candidate("control", request)], known={})
    told = as_json(plan, predicted=forecasts(plan))
    assert told["trials"][0]["predicted_bytes"] is None
    assert told["gpu_hours"]["high"] > 3 * told["gpu_hours"]["low"]


def on_gpus(**request: Any) -> Plan:
    """A plan of one trial of a recipe that is known here, but was not built."""
    words = ["trainer=bridge", "model=qwen3_30b_a3b", "recompute=control", "cluster=slurm", "parallelism.world_size=16"]
    composed = compose([*words, *(f"{key.replace('__', '.')}={value}" for key, value in request.items())])
    return make_plan("q", [Candidate("[]", composed)], known={})


def test_what_cannot_run_as_far_as_the_recipe_is_known_is_told_without_hours() -> None:
    plan = on_gpus(parallelism__world_size=12, parallelism__ep=8, parallelism__pp=1)
    lines = whole(plan, predicted=forecasts(plan))
    assert any(line.endswith("to run on 12 ranks, but cannot") for line in lines)
    assert any(
        line.startswith("warning: [] cannot run, as far as the recipe is known here: 12 ranks do not divide")
        for line in lines
    )
    told = as_json(plan, predicted=forecasts(plan))
    assert told["gpu_hours"] is None
    assert told["trials"][0]["cannot_run"]
    assert "12 ranks" in told["trials"][0]["not_predicted"]
    fine = on_gpus()
    assert not any("cannot" in line for line in whole(fine, predicted=forecasts(fine)))


@pytest.mark.parametrize("tp", [3, 8])
def test_heads_that_a_layout_cannot_share_are_refused_without_the_recipe(tp: int) -> None:
    """Qwen3 30B-A3B has 32 heads and 4 query groups, and eight ranks may share four groups."""
    plan = on_gpus(parallelism__tp=tp, parallelism__world_size=tp * 8, parallelism__ep=8, parallelism__pp=1)
    refused = [finding.message for entry in plan.rejected for finding in entry.findings]
    assert any("num_attention_heads=32 is no multiple of parallelism.tp=3" in text for text in refused) == (tp == 3)
    assert bool(plan.new) == (tp == 8)


def test_the_studys_target_and_its_bound_are_minded() -> None:
    small, large = on_gpus(study__target_gb=10, study__gpu_hours=0.5), on_gpus(study__target_gb=2000)
    lines = whole(small, predicted=forecasts(small))
    assert any("will not fit study.target_gb=10" in line for line in lines)
    assert "note: study.gpu_hours=0.5 bounds a search (study.mode=escalate); this study runs whole" in lines
    assert not any("will not fit" in line or "bounds" in line for line in whole(large, predicted=forecasts(large)))


def test_a_job_that_ends_before_its_trials_is_told() -> None:
    short, long = on_gpus(cluster__time=1), on_gpus(cluster__time="'2-00'")
    (said,) = [line for line in cost_lines(short, forecasts(short)) if line.startswith("warning")]
    assert said.startswith("warning: cluster.time=1 ends a job before a trial of [], which should take ")
    assert not any(line.startswith("warning") for line in cost_lines(long, forecasts(long)))


def test_ranks_without_gpus_cost_no_gpu_hours() -> None:
    plan = make_plan("cpu", [candidate("control", [])], known={})
    assert as_json(plan, predicted=forecasts(plan))["gpu_hours"] is None
    assert not any("GPU" in line for line in cost_lines(plan, forecasts(plan)))


def test_a_search_says_that_it_decides_which_of_them_run() -> None:
    asked = [candidate("control", []), candidate("mlp", ["mlp"])]
    plan = make_plan("s", asked, known={trial_id(asked[0]): "pass"}, searched=True)
    lines = whole(plan)
    assert lines[0] == "study s: 2 trials, up to 1 to run, as a search decides one by one, 1 known already"
    assert any("mlp" in line and "may run on 2 ranks" in line for line in lines)
    assert lines[-2].startswith("would run at most 1 trial on 2 ranks")
    assert lines[-1] == "the search looks for the fastest that passes, study.gpu_hours sets no bound"
    for one in asked:
        one.request["study"] = {"target_gb": 70.0, "gpu_hours": 3.5}
    bounded = make_plan("s", asked, known={}, searched=True)
    said = "the search looks for the fastest within 70 GB on every rank, and ends at 3.5 GPU-hours"
    assert said in cost_lines(bounded)
    assert as_json(plan)["searched"] is True
    assert as_json(make_plan("s", asked, known={}))["searched"] is False


def test_many_duplicates_and_many_warnings_of_a_rule_are_one_line_each() -> None:
    seeds = range(60)
    asked = [candidate(f"seed {seed}", ["core_attn"], seed=seed) for seed in seeds]
    asked += [candidate(f"again {seed}", None, seed=seed) for seed in seeds]
    asked += [candidate(f"experts {seed}", ["moe"], seed=seed) for seed in seeds]
    plan = make_plan("big", asked, known={})
    lines = whole(plan)
    (duplicates,) = [number for number, line in enumerate(lines) if line.startswith("duplicate")]
    assert lines[duplicates].startswith("duplicate (60): again 0, again 1")
    assert lines[duplicates + 1] == "  again 0: it asks for the same as seed 0, so it runs once"
    (warning,) = [line for line in lines if line.startswith("warning")]
    assert warning.startswith("warning (no effect, moe-label-without-experts): experts 0")
    assert "and 54 more" in warning
    assert len(lines) < 8


def test_what_a_search_may_leave_out_is_not_said_to_be_running() -> None:
    asked = [candidate("control", []), candidate("mlp", ["mlp"]), candidate("layernorm", ["layernorm"])]
    trials = [trial_id(one) for one in asked]
    active = dict.fromkeys(trials, "b17")
    plan = make_plan("second", asked, known={}, active=active, undecided=trials[1:])
    said = whole(plan)
    assert said[0] == "study second: 3 trials, 0 to run, 1 known already, 2 wait for a search"
    assert "known already (1): control (running)" in said
    assert any(line.startswith("wait for a search (2): mlp, layernorm: it may leave them out") for line in said)
    assert [line.split("  ")[-1] for line in entry_lines(plan)] == [
        "running already",
        "waits for a search",
        "waits for a search",
    ]


def test_where_all_is_known_the_plan_says_how_to_measure_again() -> None:
    asked = [candidate("control", []), candidate("mlp", ["mlp"])]
    known = dict.fromkeys(map(trial_id, asked), "pass")
    said = "note: all of that has a result, so nothing runs: `retry` or another results_dir measures it again"
    assert said in whole(make_plan("again", asked, known=known))
    assert said not in whole(make_plan("again", asked, known={trial_id(asked[0]): "pass"}))
