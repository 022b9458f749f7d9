"""What a plan decides about each candidate, and what it says."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from orchestrator.plan.candidate import Candidate, trial_id
from orchestrator.plan.control import control_of
from orchestrator.plan.finding import Kind
from orchestrator.plan.plan import Plan, Status, make_plan
from orchestrator.plan.verdict import Revision, Verdict
from orchestrator.report.plan import as_json, detail_lines

REQUEST: dict[str, Any] = {
    "recompute_granularity": "selective",
    "recompute_modules": [],
    "recompute_method": None,
    "recompute_num_layers": None,
    "model": {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4},
    "parallelism": {"tp": 1, "pp": 2, "vpp": None, "cp": 1, "ep": 1, "etp": None, "layout": None, "world_size": 2},
    "precision": {"params_dtype": "fp32"},
    "training": {
        "seq_length": 64,
        "micro_batch_size": 1,
        "global_batch_size": 4,
        "train_iters": 6,
        "steady_window": [4, 6],
    },
    "trainer": {"name": "mcore_cpu"},
    "cluster": {"kind": "local"},
    "revisions": {},
}


def candidate(name: str, modules: Any = None, **training: int) -> Candidate:
    request = copy.deepcopy(REQUEST)
    request["recompute_modules"] = modules
    request["training"].update(training)
    return Candidate(name, request)


def planned(*candidates: Candidate, known: dict[str, str | None] | None = None, **settings: Any) -> Plan:
    return make_plan("s", candidates, known=known or {}, **settings)


CONTROL = candidate("control", [])
ATTENTION = candidate("core_attn", ["core_attn"])


def test_a_candidate_without_a_result_is_new_and_a_control_is_known_as_one() -> None:
    plan = planned(CONTROL, ATTENTION)
    assert [(entry.name, entry.status, entry.is_control) for entry in plan.entries] == [
        ("control", Status.NEW, True),
        ("core_attn", Status.NEW, False),
    ]
    assert plan.entries[0].trial == trial_id(CONTROL)
    assert plan.entries[0].world_size == 2


@pytest.mark.parametrize("label", ["pass", "OOM-fwd", "failed:non_finite"])
def test_a_trial_with_a_result_is_shown_and_not_run(label: str) -> None:
    (entry,) = planned(CONTROL, known={trial_id(CONTROL): label}).entries
    assert (entry.status, entry.label) == (Status.KNOWN, label)


@pytest.mark.parametrize("label", ["failed:crash", "failed:hang", "failed:cancelled"])
def test_a_trial_that_failed_without_a_result_runs_again_and_says_so(label: str) -> None:
    (entry,) = planned(CONTROL, known={trial_id(CONTROL): label}).entries
    assert entry.status is Status.NEW
    assert entry.label is None
    assert label in entry.reasons[0]


def test_a_trial_that_is_running_is_not_started_twice() -> None:
    trial = trial_id(CONTROL)
    (entry,) = planned(CONTROL, known={trial: None}, active={trial: "b17"}).entries
    assert entry.status is Status.KNOWN
    assert "b17" in entry.reasons[0]


def test_a_candidate_of_a_search_that_is_not_running_waits_for_it() -> None:
    trial = trial_id(CONTROL)
    waiting = {"active": {trial: "b17"}, "undecided": {trial}}
    (entry,) = planned(CONTROL, known={trial: None}, **waiting).entries
    assert (entry.status, entry.waits) == (Status.KNOWN, True)
    assert "b17" in entry.reasons[0]
    assert "may leave it out" in entry.reasons[0]
    (entry,) = planned(CONTROL, known={trial: "pass"}, **waiting).entries
    assert (entry.label, entry.waits) == ("pass", False)
    (entry,) = planned(CONTROL, known={trial: None}).entries
    assert entry.status is Status.NEW, "a search that is over holds nothing back"


def test_other_software_is_named_and_the_trial_runs() -> None:
    before = trial_id(CONTROL, 0, {"torch": "2.7"})
    (entry,) = planned(CONTROL, known={before: "pass"}, fingerprint={"torch": "2.8"}).entries
    assert entry.status is Status.NEW
    assert before in entry.reasons[0]
    assert "other software" in entry.reasons[0]
    (entry,) = planned(CONTROL, known={before: "failed:crash"}, fingerprint={"torch": "2.8"}).entries
    assert entry.reasons == ()


def test_a_second_spelling_runs_once_and_names_the_first() -> None:
    plan = planned(ATTENTION, candidate("null list", None), repeats=2)
    assert [entry.status for entry in plan.entries] == [Status.NEW, Status.DUPLICATE, Status.NEW]
    assert "core_attn" in plan.duplicates[0].reasons[0]


def test_repeats_interleave_so_that_a_study_cut_short_has_every_candidate() -> None:
    plan = planned(CONTROL, ATTENTION, repeats=2, known={trial_id(CONTROL, 1): "pass"})
    assert [(entry.name, entry.repeat, entry.status) for entry in plan.entries] == [
        ("control", 0, Status.NEW),
        ("core_attn", 0, Status.NEW),
        ("control (repeat 1)", 1, Status.KNOWN),
        ("core_attn (repeat 1)", 1, Status.NEW),
    ]


def test_a_rejected_candidate_leaves_the_others_and_names_rule_setting_and_fix() -> None:
    plan = planned(CONTROL, candidate("typo", ["core_atn"]), ATTENTION, repeats=3)
    assert plan.count(Status.NEW) == 6
    assert plan.count(Status.REJECTED) == 1
    typo = plan.rejected[0]
    assert typo.label == "rejected"
    assert "did you mean core_attn?" in typo.reasons[0]
    for allowed in ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"):
        assert allowed in typo.reasons[0]


def test_rejections_are_grouped_under_their_rule_most_frequent_first() -> None:
    bad = [candidate(f"b{size}", [], global_batch_size=size, micro_batch_size=2) for size in (5, 7)]
    plan = planned(candidate("typo", ["core_atn"]), *bad)
    groups = plan.rejections_by_rule()
    assert [(rule, len(entries)) for rule, entries in groups.items()] == [
        ("batch-divides", 2),
        ("recompute-module-label", 1),
    ]
    message = plan.deciding(groups["batch-divides"][0]).message
    assert "global_batch_size=5" in message
    assert "4, 6" in message


def test_the_validators_word_beats_a_rule_and_the_plan_says_that_they_differ() -> None:
    plan = planned(candidate("new label", ["core_atn"]), verdicts=[Verdict(ok=True)])
    assert plan.entries[0].status is Status.NEW
    ((finding, count),) = plan.findings(Kind.DIFFERS).items()
    assert (finding.rule, count) == ("recompute-module-label", 1)
    assert "accepts this" in finding.message


def test_a_refusal_that_no_rule_foresaw_rejects_in_the_frameworks_words() -> None:
    plan = planned(CONTROL, verdicts=[Verdict(ok=False, message="heads do not divide")])
    assert plan.entries[0].status is Status.REJECTED
    assert "heads do not divide" in plan.deciding(plan.entries[0]).message
    assert plan.findings(Kind.DIFFERS)


def test_consent_of_the_configuration_says_nothing_about_the_batch() -> None:
    plan = planned(candidate("batch", [], global_batch_size=5, micro_batch_size=2), verdicts=[Verdict(ok=True)])
    assert plan.entries[0].status is Status.REJECTED


def test_what_could_not_be_judged_is_open() -> None:
    plan = planned(CONTROL, verdicts=[Verdict(ok=True, open=("Transformer Engine is not installed here",))])
    assert plan.entries[0].status is Status.NEW
    assert [finding.message for finding in plan.findings(Kind.OPEN)] == ["Transformer Engine is not installed here"]


def test_rules_restate_the_release_that_answered() -> None:
    graphs = copy.deepcopy(ATTENTION.request)
    graphs["model"] |= {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "attn", "attention_dropout": 0.0}
    asked = Candidate("graphs", graphs)
    for core, status in (("0.15.3", Status.REJECTED), ("0.16.1", Status.NEW)):
        software = {"megatron_core": {"version": core}}
        (entry,) = planned(asked, verdicts=[Verdict(ok=core == "0.16.1", message="refused", software=software)]).entries
        assert entry.status is status
        assert not any(finding.kind is Kind.DIFFERS for finding in entry.findings)


def test_a_warning_rejects_only_under_strict() -> None:
    unused = copy.deepcopy(REQUEST) | {"recompute_granularity": None, "recompute_modules": ["mlp"]}
    assert planned(Candidate("off", unused)).entries[0].status is Status.NEW
    strict = planned(Candidate("off", unused), strict=True)
    assert strict.entries[0].status is Status.REJECTED
    assert strict.deciding(strict.entries[0]).rule == "recompute-modules-unused"


def test_a_rejected_candidate_does_not_swallow_a_later_valid_one_of_the_same_identity() -> None:
    plan = planned(
        ATTENTION, candidate("again", ["core_attn"]), verdicts=[Verdict(ok=False, message="no"), Verdict(ok=True)]
    )
    assert [entry.status for entry in plan.entries] == [Status.REJECTED, Status.NEW]


def bridge(**model: Any) -> Candidate:
    settings = {"name": "bridge", "overrides": {}}
    word = "recipe"
    request = copy.deepcopy(REQUEST) | {
        "recompute_modules": ["mlp"],
        "trainer": settings,
        "model": {"name": word, "recipe": "a.recipe", **model},
        "parallelism": dict.fromkeys(REQUEST["parallelism"], word),
        "precision": {"params_dtype": word},
        "training": {"seq_length": word, "micro_batch_size": word, "global_batch_size": word, "train_iters": 20},
    }
    return Candidate("bridge", request)


def test_rules_say_nothing_about_what_only_the_recipe_knows() -> None:
    (entry,) = planned(bridge(), verdicts=[Verdict(ok=True, open=("num_moe_experts", "moe_grouped_gemm"))]).entries
    assert (entry.status, entry.world_size) == (Status.NEW, None)
    (finding,) = entry.findings
    assert finding.kind is Kind.OPEN
    assert "num_moe_experts, moe_grouped_gemm" in finding.message


def test_what_a_recipe_hides_from_the_validator_it_does_not_consent_to() -> None:
    offloading = bridge(cpu_offloading=True)
    (entry,) = planned(offloading, verdicts=[Verdict(ok=True)]).entries
    assert entry.status is Status.REJECTED
    overridden = bridge()
    overridden.request["trainer"]["overrides"] = {"model.cpu_offloading": True}
    (entry,) = planned(overridden, verdicts=[Verdict(ok=True)]).entries
    assert entry.status is Status.REJECTED


def offloading(**request: Any) -> Candidate:
    one = bridge(cpu_offloading=True, cpu_offloading_num_layers=8)
    one.request.update(recompute_granularity=None, recompute_modules=None)
    one.request.update(request)
    return one


@pytest.mark.parametrize("nested", [{"model.cpu_offloading": True}, {"model": {"cpu_offloading": True}}])
def test_what_offloads_in_any_spelling_has_the_control_of_what_recomputes(nested: dict[str, Any]) -> None:
    inside = bridge()
    inside.request.update(recompute_granularity=None, recompute_modules=None)
    overrides = {"optimizer.lr": 0.1}
    inside.request["trainer"]["overrides"] = {**overrides, **nested}
    plain = bridge()
    plain.request["trainer"]["overrides"] = overrides
    plain.request.update(recompute_granularity="selective", recompute_modules=["moe"])
    assert inside.match_key == plain.match_key
    assert control_of(inside).request == control_of(plain).request
    assert control_of(inside).is_control
    plan = planned(inside, offloading(), plain)
    assert plan.refused_controls == {}
    assert [entry.status for entry in plan.entries] == [Status.NEW] * 3


def test_a_control_that_offloads_is_none_and_its_refusal_takes_no_control_away() -> None:
    odd = offloading(recompute_granularity="selective", recompute_modules=[])
    assert not odd.is_control
    plan = planned(odd, offloading())
    assert [entry.status for entry in plan.entries] == [Status.REJECTED, Status.NEW]
    assert plan.refused_controls == {}


def test_a_control_that_cannot_run_is_told_by_the_trials_that_lack_it() -> None:
    """Megatron Core 0.15 refuses recomputation with CUDA graphs, of nothing too."""
    captured = candidate("off", None)
    captured.request.update(recompute_granularity=None)
    captured.request["model"]["cuda_graph_impl"] = "local"
    plan = planned(captured, revision=Revision("0.15.3"))
    assert [entry.status for entry in plan.entries] == [Status.NEW]
    assert [finding.rule for finding in plan.refused_controls.values()] == ["graph-recompute"]
    assert any("no control can run" in line and "(off)" in line for line in detail_lines(plan))
    (said,) = as_json(plan)["without_control"]
    assert said["trials"] == [plan.entries[0].trial]


def test_a_control_that_the_framework_refused_is_not_added_behind_its_back() -> None:
    plan = planned(CONTROL, ATTENTION, verdicts=[Verdict(ok=False, message="no lists here"), Verdict(ok=True)])
    assert [entry.status for entry in plan.entries] == [Status.REJECTED, Status.NEW]
    assert [finding.message for finding in plan.refused_controls.values()] == ["no lists here"]


def test_a_control_with_a_setting_too_many_is_added_without_it() -> None:
    odd = candidate("odd", [])
    odd.request["recompute_num_layers"] = 3
    plan = planned(odd, ATTENTION)
    assert [entry.status for entry in plan.entries] == [Status.REJECTED, Status.NEW]
    assert plan.refused_controls == {}
