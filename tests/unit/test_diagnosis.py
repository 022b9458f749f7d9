from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from measured_rows import row

from orchestrator.analysis.architecture import architecture_of
from orchestrator.analysis.command import Commands, differing_overrides
from orchestrator.analysis.comparison import compare
from orchestrator.analysis.diagnosis import diagnose
from orchestrator.analysis.failure_rules import FAILURE_TABLE
from orchestrator.analysis.further_rules import FURTHER_RULES
from orchestrator.analysis.published_tables import published_rows
from orchestrator.analysis.reproduce import group_commands, published_commands
from orchestrator.analysis.rows import StagePeak
from orchestrator.config.compose import compose
from orchestrator.vocabulary import Stage

RULES = (*FAILURE_TABLE, *FURTHER_RULES)
MLA_MOE = {"multi_latent_attention": True, "num_moe_experts": 8, "moe_layer_freq": 1, "moe_grouped_gemm": True}
GB = 10**9


def found(rows, **options):
    return diagnose(compare(rows), RULES, Commands("demo", ("model.num_layers=4",)), **options)


def of(rule, rows):
    """The findings of one rule."""
    return [finding for finding in found(rows) if finding.rule == rule]


def model(modules, settings=MLA_MOE, **changes):
    return row(modules, effective_model=settings, **changes)


def oom(modules, stage, settings=MLA_MOE, **changes):
    label = {"forward": "OOM-fwd", "backward": "OOM-bwd", "optimizer_init": "OOM-optimizer", "model_build": "OOM-setup"}
    changes = {"last_iteration": 0, "rank": 0, "step_ms": None, **changes}
    return model(modules, settings, label=label[stage], stage=Stage(stage), cause="device_oom", **changes)


def rejected(modules, settings, reason, **changes):
    made = model(modules, settings, **changes)
    request = {**made.requested, "model": settings}
    return replace(made, requested=request, effective=None, label="rejected", peaks=(), evidence=(reason,))


def test_core_attn_without_relief_names_the_fused_backend_and_a_boundary_of_this_architecture():
    settings = {**MLA_MOE, "attention_backend": "flash"}
    (finding,) = of("core-attn-little-effect", [model([], settings), model(["core_attn"], settings, step_ms=104.0)])
    assert "flash" in finding.cause
    assert "0.00% and the step time by +4.00%" in finding.symptom
    assert "recompute_modules=[],[mla_up_proj],[moe_act]" in shlex.split(finding.steps[0].command)


def test_core_attn_without_relief_repeats_nothing_that_was_measured():
    settings = {**MLA_MOE, "attention_backend": "flash"}
    rows = [model([], settings), model(["core_attn"], settings, step_ms=104.0), model(["mla_up_proj"], settings)]
    (finding,) = of("core-attn-little-effect", rows)
    assert "recompute_modules=[],[moe_act]" in shlex.split(finding.steps[0].command)
    (finding,) = of("core-attn-little-effect", [*rows, model(["moe_act"], settings)])
    assert finding.steps[0].command is None
    assert "measured already: mla_up_proj and moe_act" in finding.steps[0].action


def test_peaks_in_the_optimizer_of_most_candidates_are_said_once():
    def made(modules, optimizer, forward):
        stages = ((Stage.FORWARD, forward), (Stage.OPTIMIZER_STEP, optimizer))
        return row(modules, peaks=tuple(StagePeak(0, stage, size * GB) for stage, size in stages))

    rows = [made([], 67, 69), made(["moe"], 70, 47), made(["mlp"], 68, 60)]
    (finding,) = of("optimizer-sets-the-peak", rows)
    assert "below 67.000 GB" in finding.symptom
    assert "above the control's 69.000 GB are moe 70.000 GB" in finding.symptom
    assert not of("optimizer-sets-the-peak", [made([], 30, 69), made(["moe"], 30, 47)])


def test_core_attn_that_saves_memory_is_left_alone():
    assert not of("core-attn-little-effect", [model([]), model(["core_attn"], peak=800_000_000)])


def test_mla_that_runs_out_of_memory_with_core_attn_is_pointed_to_mla_up_proj():
    (finding,) = of("mla-oom-after-core-attn", [oom(["core_attn"], "forward")])
    assert "mla_up_proj" in finding.steps[0].command
    assert not of("mla-oom-after-core-attn", [oom(["core_attn"], "forward", {"multi_latent_attention": False})])
    assert not of("mla-oom-after-core-attn", [oom(["core_attn"], "optimizer_init")])


@pytest.mark.parametrize(
    ("modules", "following"),
    [([], "[moe_act]"), (["moe_act"], "[layernorm,moe_act]"), (["layernorm", "moe_act"], "[layernorm,moe]")],
)
def test_a_moe_model_climbs_the_ladder_one_boundary_at_a_time(modules, following):
    (finding,) = of("moe-peak-high", [oom(modules, "backward")])
    assert shlex.split(finding.steps[0].command)[-1].endswith(following)


def test_a_rung_that_was_measured_already_is_skipped():
    findings = of("moe-peak-high", [oom([], "backward"), oom(["moe_act"], "backward")])
    control = next(finding for finding in findings if finding.subject == "[]")
    assert shlex.split(control.steps[0].command)[-1] == "recompute_modules=[],[layernorm]"


def test_above_whole_moe_there_is_only_full_recompute():
    (finding,) = of("moe-peak-high", [oom(["moe"], "backward")])
    assert "recompute_granularity=full" in finding.steps[0].command


@pytest.mark.parametrize(
    ("label", "switch"),
    [("moe", "overlap_moe_expert_parallel_comm"), ("shared_experts", "moe_shared_expert_overlap")],
)
def test_an_overlap_conflict_offers_both_ways_out(label, switch):
    reason = f"{label} cannot be recomputed with overlap"
    (finding,) = of("overlap-conflict", [rejected([label], {**MLA_MOE, switch: True}, reason)])
    assert reason in finding.symptom
    assert f"model.{switch}=false" in finding.steps[1].command


def test_mlp_on_a_model_without_dense_layers_cannot_act():
    (finding,) = of("label-without-effect", [model([]), model(["mlp"])])
    assert "every layer's MLP is MoE" in finding.cause


def test_mlp_on_a_model_with_a_dense_layer_can():
    settings = {**MLA_MOE, "num_layers": 4, "moe_layer_freq": [0, 1, 1, 1]}
    assert not of("label-without-effect", [model([], settings), model(["mlp"], settings, peak=9 * 10**8)])


def test_a_label_that_was_never_replayed_had_no_effect():
    (finding,) = of("label-without-effect", [model([]), model(["layernorm"], replays=0)])
    assert "no rank ever replayed" in finding.symptom


def test_a_label_that_changes_neither_peak_nor_time_is_reported():
    (finding,) = of("label-without-effect", [model([]), model(["layernorm"], replays=8, step_ms=100.1)])
    assert "neither the peak (0.00%) nor the step time (+0.10% inside the noise band of ±0.71%)" in finding.symptom


def test_full_recompute_that_graphs_refuse_offers_both_ways_out():
    settings = {**MLA_MOE, "cuda_graph_impl": "local"}
    made = rejected([], settings, "full recompute is only supported with full iteration CUDA graph", granularity="full")
    (finding,) = of("full-recompute-with-graphs", [made])
    assert "model.cuda_graph_impl=full_iteration" in finding.steps[0].command
    assert "model.cuda_graph_impl=none" in finding.steps[1].command


def test_a_boundary_that_straddles_a_graph_is_explained_with_the_scope():
    settings = {**MLA_MOE, "cuda_graph_impl": "local", "cuda_graph_scope": ["attn"]}
    (finding,) = of("graph-scope-straddled", [rejected(["core_attn"], settings, "attn CUDA graph holds core_attn")])
    assert "(attn)" in finding.cause


def test_reserved_far_above_allocated_suggests_expandable_segments():
    made = model(["moe"], peak=50 * GB, reserved=70 * GB, device_kind="cuda")
    (finding,) = of("reserved-not-allocated", [made])
    assert "20.000 GB apart" in finding.symptom
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in finding.steps[0].command
    on = replace(made, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    (finding,) = of("reserved-not-allocated", [on])
    assert "on already" in finding.steps[0].action


def test_an_ordinary_allocator_cache_is_left_alone():
    assert not of("reserved-not-allocated", [model([], peak=50 * GB, reserved=53 * GB, device_kind="cuda")])


@pytest.mark.parametrize("reserved", [0, 2 * 2**20])
def test_what_was_reserved_before_anything_was_built_is_no_fragmentation(reserved):
    stopped = model([], peak=0, reserved=reserved, device_kind="cuda", label="failed:shared_gpu", cause="shared_gpu")
    assert not of("reserved-not-allocated", [stopped])


def test_an_oom_that_moves_to_another_rank_is_named_with_both():
    (finding,) = of("oom-moved-to-another-rank", [oom([], "forward", rank=0), oom(["moe"], "backward", rank=3)])
    assert "from rank 0 (forward) with [] to rank 3 (backward)" in finding.symptom


def test_getting_farther_is_no_pass():
    rows = [oom([], "forward"), oom(["moe"], "optimizer_init", last_iteration=0)]
    (finding,) = of("farther-but-still-oom", rows)
    assert finding.subject == "moe"
    assert "no pass" in finding.steps[0].action


def test_an_optimizer_that_does_not_fit_is_not_recomputes_to_solve():
    peaks = (StagePeak(0, Stage.FORWARD, 40 * GB), StagePeak(0, Stage.OPTIMIZER_INIT, 79 * GB))
    (finding,) = of("optimizer-bound", [oom(["moe"], "optimizer_init", peaks=peaks)])
    assert "79.000 GB; forward and backward reached 40.000 GB" in finding.symptom


def test_fp8_delayed_scaling_is_named():
    settings = {**MLA_MOE, "fp8": "e4m3", "fp8_recipe": "delayed"}
    assert of("fp8-delayed-scaling", [rejected(["moe_act"], settings, "moe_act with fp8 delayed scaling")])


def test_offloading_beside_recompute_is_named():
    settings = {**MLA_MOE, "cpu_offloading": True}
    assert of("offloading-conflict", [rejected(["moe"], settings, "cpu_offloading does not work with recompute")])


def test_a_wiped_override_is_a_finding():
    wiped = model(["core_attn"])
    wiped.requested["recompute_modules"] = ["moe_act"]
    (finding,) = of("settings-replaced", [wiped])
    assert finding.symptom == "asked for moe_act, ran core_attn"


def test_a_trial_that_passes_sometimes_says_how_often():
    (finding,) = of("passes-sometimes", [model(["moe"]), oom(["moe"], "backward", trial="again", repeat=1)])
    assert finding.symptom == "1 of 2 repeats passed; another was OOM-bwd"


def test_losses_that_leave_the_controls_are_named():
    assert of("losses-differ", [model([]), model(["moe"], losses={1: 4.1, 20: 3.0})])
    assert not of("losses-differ", [model([]), model(["moe"], losses={1: 4.00001, 20: 3.0})])


def test_losses_that_part_from_the_start_are_told_from_those_that_drift():
    control = model([], losses={1: 12.345, 2: 12.348, 9: 9.54720, 10: 9.1})
    drifting = model(["moe"], losses={1: 12.345, 2: 12.348, 9: 9.53528, 10: 9.08})
    (finding,) = of("losses-differ", [control, drifting])
    assert "up to 2.2e-03 (relative), past 0.001 from iteration 9 on" in finding.symptom
    assert "the first two iterations agree" in finding.cause
    assert "gradient norm" in finding.steps[0].action
    parted = model(["moe"], losses={1: 12.345, 2: 12.3, 9: 9.5, 10: 9.08})
    (finding,) = of("losses-differ", [control, parted])
    assert "past 0.001 from iteration 2 on" in finding.symptom
    assert "dropout" in finding.cause


def test_losses_no_farther_from_the_control_than_its_runs_from_each_other_are_left_alone():
    controls = [model([]), model([], trial="last", role="control-last", losses={1: 4.0, 20: 3.01})]
    assert not of("losses-differ", [*controls, model(["moe"], losses={1: 4.0, 20: 3.005})])
    (finding,) = of("losses-differ", [*controls, model(["moe"], losses={1: 4.0, 20: 3.1})])
    assert "those of two runs of the control by up to 3.3e-03" in finding.symptom


def test_losses_that_part_where_the_controls_agree_are_named_though_those_part_later():
    controls = [
        model([], losses={1: 4.0, 2: 3.9, 20: 3.0}),
        model([], trial="last", role="control-last", losses={1: 4.0, 2: 3.9, 20: 3.01}),
    ]
    (finding,) = of("losses-differ", [*controls, model(["moe"], losses={1: 4.012, 2: 3.9117, 20: 3.0})])
    assert "past 0.001 from iteration 1 on" in finding.symptom
    assert "dropout" in finding.cause


def test_a_loop_that_collects_garbage_often_is_told_what_it_costs():
    control = model([], step_ms=1759.6, step_gc_ms=91.2)
    control.effective["train"] = {"manual_gc": True, "manual_gc_interval": 5}
    (finding,) = of("garbage-collection", [control, model(["moe"], step_ms=2000.0, step_gc_ms=91.2)])
    assert finding.symptom == "garbage collection takes 91 ms of a step of 1760 ms, or 5.2%"
    assert "every 5 steps" in finding.cause
    assert "+trainer.overrides={train.manual_gc_interval: 100}" in shlex.split(finding.steps[0].command)
    assert not of("garbage-collection", [replace(control, step_gc_ms=20.0)])
    assert not of("garbage-collection", [replace(control, step_gc_ms=None)])


def test_a_study_without_a_control_is_told_to_run_one():
    (finding,) = of("no-control", [model(["moe"]), model(["mlp"])])
    assert finding.steps[0].command.endswith("'recompute_modules=[]'")


def test_every_row_of_the_guides_table_is_a_rule():
    assert [rule.source for rule in FAILURE_TABLE] == [f"guide, Failure Diagnosis, row {n}" for n in range(1, 10)]


def test_a_single_trial_is_spoken_of_alone():
    rows = [oom([], "forward"), oom(["moe_act"], "forward")]
    assert {finding.subject for finding in found(rows, only=frozenset({rows[1].trial}))} == {"moe_act"}


def test_the_published_tables_are_diagnosed_too():
    rules = {finding.rule for finding in found(published_rows("moonlight-16b"))}
    assert rules == {"core-attn-little-effect"}
    assert {finding.rule for finding in found(published_rows("nemotron-3-nano"))} == {"moe-peak-high"}


def test_commands_survive_a_shell():
    command = Commands("my study; rm -rf", ("trainer.environment.A='b c'",)).run(sweep=[["$(x)"]])
    assert shlex.split(command)[3:] == [
        "-m",
        "study.name=my study; rm -rf",
        "trainer.environment.A='b c'",
        "recompute_granularity=selective",
        "recompute_modules=[$(x)]",
    ]


def test_base_overrides_say_what_differs_from_the_composed_configuration():
    requested = {"model": {"name": "a", "num_layers": 8, "moe_layer_freq": [0, 1]}, "trainer": {"name": "mcore_cpu"}}
    composed = {"model": {"name": "b", "num_layers": 4}, "trainer": {"name": "mcore_cpu"}}
    assert differing_overrides(requested, composed) == ("model.num_layers=8", "model.moe_layer_freq=[0,1]")


def test_dense_layers_are_counted_as_megatron_core_places_them():
    assert architecture_of(model([], {**MLA_MOE, "num_layers": 6, "moe_layer_freq": 2})).dense_layers == 3
    assert architecture_of(model([], {"num_layers": 6, "num_moe_experts": None})).dense_layers == 6


def test_a_rule_gives_the_command_of_the_candidate_that_it_speaks_of():
    full = model([], granularity="full", method="block", num_layers=8, label="OOM-optimizer",
                 stage=Stage.OPTIMIZER_STEP, rank=0)  # fmt: skip
    (finding,) = of("optimizer-bound", [model([]), full])
    words = shlex.split(finding.steps[0].command)
    assert {"recompute_granularity=full", "recompute_method=block", "recompute_num_layers=8"} <= set(words)
    assert "recompute_modules=[]" not in words


def test_one_finding_names_every_candidate_whose_reserved_memory_is_above_its_allocated():
    rows = [
        model(labels, device_kind="cuda", peak=60 * GB, reserved=(70 + 5 * number) * GB)
        for number, labels in enumerate([[], ["moe_act"], ["layernorm"]])
    ]
    (finding,) = of("reserved-not-allocated", rows)
    assert finding.subject == "3 candidates ([]; layernorm; moe_act)"
    assert set(finding.trials) == {one.trial for one in rows}
    assert "[] 10.000 GB of 70.000 GB" in finding.symptom
    (asked,) = [word for word in shlex.split(finding.steps[0].command) if word.startswith("study.candidates=")]
    assert asked.count("recompute_granularity") == 3


def test_what_the_comparison_calls_noise_no_rule_calls_a_change():
    rows = [model([], step_ms=100.0, step_scatter_ms=9.0), model(["core_attn"], step_ms=108.7, step_scatter_ms=9.0)]
    (finding,) = of("core-attn-little-effect", rows)
    assert "the step time by no measurable amount (+8.70% inside the noise band of ±" in finding.symptom


def test_the_same_stage_an_iteration_later_is_no_later_stage():
    rows = [
        model(labels, label="OOM-bwd", stage=Stage.BACKWARD, rank=0, last_iteration=done)
        for labels, done in (([], 0), (["moe_act"], 1))
    ]
    (finding,) = of("farther-but-still-oom", rows)
    assert finding.cause == "the same stage (backward) still does not fit, 1 iteration later"


def test_a_candidate_faster_than_its_control_is_told_to_be_repeated():
    (finding,) = of("faster-than-control", [model([]), model(["moe"], step_ms=68.0)])
    assert "faster than recomputing nothing" in finding.symptom
    assert "study.repeats=3" in finding.steps[0].command
    assert not of("faster-than-control", [model([]), model(["moe"], step_ms=99.8)])


def test_nothing_is_proposed_that_ran_out_of_memory_already_and_what_passed_is_named():
    settings = {"num_moe_experts": 8, "moe_grouped_gemm": True}
    tried = [oom([name], "backward", settings) for name in ("moe_act", "layernorm")]
    findings = of("moe-peak-high", [oom([], "backward", settings), *tried, model(["moe"], settings)])
    said = next(finding for finding in findings if finding.subject == "[]").steps[0]
    assert said.command is None
    assert "Of what was tried, moe passed." in said.action
    dense = {"num_moe_experts": None, "attention_backend": "flash"}
    rows = [model([], dense), model(["core_attn"], dense), oom(["layernorm"], "backward", dense)]
    (finding,) = of("core-attn-little-effect", rows)
    assert shlex.split(finding.steps[0].command)[-1] == "recompute_modules=[],[mlp]"


def test_an_attention_that_is_just_called_fused_is_said_once():
    settings = {**MLA_MOE, "attention_backend": "fused"}
    (finding,) = of("core-attn-little-effect", [model([], settings), model(["core_attn"], settings)])
    assert "fused (fused)" not in finding.cause


def test_an_oom_in_the_softmax_is_pointed_to_core_attn_first():
    rows = [oom([], "forward", evidence=("torch.OutOfMemoryError in softmax of dot_product_attention.py",))]
    (finding,) = of("attention-oom", rows)
    assert shlex.split(finding.steps[0].command)[-1] == "recompute_modules=[],[core_attn]"
    assert not of("moe-peak-high", rows)
    assert not of("attention-oom", [*rows, oom(["core_attn"], "forward")])


@pytest.mark.parametrize("table", ["moonlight-16b", "nemotron-3-nano", "llama3-70b-sft"])
def test_a_command_for_a_published_row_asks_for_its_own_model_and_trainer(table):
    rows = published_rows(table)
    commands = published_commands(rows[0])
    study = compose([f"study={commands.study}"])
    asked = compose(list(commands.base))
    for name in ("trainer", "model", "parallelism", "precision", "training"):
        assert asked[name] == study[name]
    tried = {line.candidate.recompute.text for group in compare(rows).groups for line in group.lines}
    for finding in diagnose(compare(rows), RULES, group_commands(compare(rows))):
        for step in finding.steps:
            words = shlex.split(step.command or "")
            assert not words or "trainer=bridge" in words
            lists = [word for word in words if word.startswith("recompute_modules=")]
            assert all(not text or text not in tried for word in lists for text in word[18:-1].split("],[")[1:])


def test_less_than_what_ran_out_of_memory_is_not_proposed_in_the_published_table():
    rows = published_rows("nemotron-3-nano")
    found = {finding.subject: finding.steps[0] for finding in diagnose(compare(rows), RULES, Commands(""))}
    assert found["[]"].command is None
    assert "Of what was tried, moe; moe, layernorm passed" in found["[]"].action


def hidden(modules, forward, replays=8):
    """A row whose optimizer's step sets the peak, whatever forward needs."""
    peaks = tuple(StagePeak(0, stage, size) for stage, size in ((Stage.FORWARD, forward), (OPTIMIZER, 60 * GB)))
    return model(modules, peaks=peaks, replays=replays)


OPTIMIZER = Stage.OPTIMIZER_STEP


def test_a_label_that_acts_behind_the_optimizers_peak_is_not_called_absent():
    (finding,) = of("label-without-effect", [hidden([], 37 * GB), hidden(["moe_act"], 36 * GB)])
    assert "forward's peak fell from 37.000 GB to 36.000 GB" in finding.symptom
    assert finding.cause == "the label acts, and optimizer_step sets the peak, which recompute does not change"
    assert finding.steps[0].command is None


def test_a_label_that_leaves_forward_as_it_is_may_be_absent():
    (finding,) = of("label-without-effect", [hidden([], 37 * GB), hidden(["moe_act"], 37 * GB)])
    assert "absent or inactive" in finding.cause


@pytest.mark.parametrize(("fraction", "text"), [(-0.00003, "0.00%"), (0.00003, "0.00%"), (-0.0001, "-0.01%")])
def test_a_share_that_rounds_to_nothing_has_no_sign(fraction, text):
    rows = [model([], peak=10**9), model(["layernorm"], replays=8, peak=round(10**9 * (1 + fraction)))]
    (finding,) = of("label-without-effect", rows)
    assert f"neither the peak ({text})" in finding.symptom


def test_a_hang_has_the_advice_of_its_outcome_and_where_to_look():
    hung = model([], label="failed:hang", cause="hang", stage=Stage.FORWARD, step_ms=None, last_iteration=2)
    (finding,) = of("failed-otherwise", [replace(hung, evidence=("rank 0 stands still",))])
    assert finding.symptom == "failed:hang after iteration 2 in forward"
    assert finding.cause == "rank 0 stands still"
    assert "Ranks waited for one that did not come" in finding.steps[0].action
    assert "show" in finding.steps[0].command


def test_what_the_framework_refused_and_what_ran_out_of_memory_have_rules_of_their_own():
    assert not of("failed-otherwise", [oom([], "forward"), rejected(["moe"], MLA_MOE, "no")])
