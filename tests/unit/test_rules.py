"""What is refused or warned of, in words that name the setting and what would work; and never a traceback."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.plan.candidate import Candidate
from orchestrator.plan.fields import FIELDS, spelling
from orchestrator.plan.finding import Finding, Kind
from orchestrator.plan.plan import make_plan
from orchestrator.plan.rules import check
from orchestrator.plan.rules.rule import near
from orchestrator.plan.subject import Subject
from orchestrator.plan.verdict import Revision
from orchestrator.report.plan import as_json, whole

DENSE: dict[str, Any] = {
    "recompute_granularity": "selective",
    "recompute_modules": [],
    "recompute_method": None,
    "recompute_num_layers": None,
    "model": {
        "num_layers": 4,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    },
    "parallelism": {
        "tp": 1,
        "pp": 2,
        "vpp": None,
        "cp": 1,
        "ep": 1,
        "etp": None,
        "sequence_parallel": False,
        "layout": None,
        "world_size": 2,
    },
    "precision": {"params_dtype": "bf16", "fp8": None, "fp8_recipe": None},
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
MOE = {
    "model.num_moe_experts": 4,
    "model.moe_ffn_hidden_size": 64,
    "model.moe_grouped_gemm": True,
    "model.moe_token_dispatcher_type": "alltoall",
}
FP8 = {"precision.fp8": "hybrid"}
GRAPHS = {"model.cuda_graph_impl": "transformer_engine"}


def changed(changes: dict[str, Any], base: dict[str, Any] | None = None) -> dict[str, Any]:
    request = copy.deepcopy(base or DENSE)
    for path, value in changes.items():
        *groups, name = path.split(".")
        inner = request
        for part in groups:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return request


def found(changes: dict[str, Any], core: str = "0.16.1") -> dict[str, Finding]:
    return {item.rule: item for item, _ in check(Subject.of(changed(changes), Revision(core)))}


def test_a_valid_candidate_has_no_finding() -> None:
    assert found({}) == {}
    assert found(MOE) == {}


@pytest.mark.parametrize(
    ("changes", "rule", "fix"),
    [
        ({"recompute_modules": ["core_atn"]}, "recompute-module-label", "did you mean core_attn?"),
        ({"recompute_granularity": "selectve"}, "recompute-granularity", "did you mean selective?"),
        ({"recompute_granularity": "full"}, "full-needs-method", "recompute_method=uniform or recompute_method=block"),
        (
            {"recompute_granularity": "full", "recompute_method": "block"},
            "full-needs-num-layers",
            "recompute_num_layers: 1 or more",
        ),
        ({"recompute_num_layers": 2}, "selective-without-num-layers", "set it to null"),
        ({"recompute_modules": ["moe_act"]}, "moe-act-grouped-gemm", "set model.moe_grouped_gemm=true"),
        ({"recompute_modules": ["mla_up_proj"]}, "mla-up-proj-mla", "core_attn"),
        (
            MOE
            | {
                "recompute_modules": ["shared_experts"],
                "model.moe_shared_expert_intermediate_size": 64,
                "model.moe_shared_expert_overlap": True,
            },
            "shared-experts-overlap",
            "model.moe_shared_expert_overlap=false",
        ),
        (MOE | FP8 | {"recompute_modules": ["moe_act"]}, "fp8-delayed-scaling", "precision.fp8_recipe to tensorwise"),
        (FP8 | {"recompute_modules": ["layernorm"]}, "fp8-delayed-scaling", "drop it"),
        ({"model.cpu_offloading": True, "parallelism.pp": 1}, "cpu-offloading-recompute", "recompute=off"),
        (
            {"model.cpu_offloading": True, "recompute_granularity": None, "recompute_modules": None},
            "cpu-offloading-pipeline",
            "parallelism.pp=1",
        ),
        (
            {
                "parallelism.tp": 2,
                "parallelism.world_size": 4,
                "parallelism.sequence_parallel": True,
                "model.distribute_saved_activations": True,
            },
            "distributed-activations-sequence-parallel",
            "set it to false",
        ),
        (
            GRAPHS | {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
            "graph-full-recompute",
            "model.cuda_graph_scope=full_iteration",
        ),
        (
            MOE | GRAPHS | {"recompute_modules": ["moe"], "model.cuda_graph_scope": ["moe_router"]},
            "graph-moe-router",
            "drop moe_router",
        ),
        ({"model.cuda_graph_scope": ["atn"]}, "graph-scope", "did you mean attn?"),
        (
            MOE | {"model.overlap_moe_expert_parallel_comm": True, "recompute_granularity": "full"},
            "expert-overlap-recompute",
            "use selective",
        ),
        ({"parallelism.tp": 3, "parallelism.world_size": 6}, "heads-tensor-parallel", "nearest tp 2, 4, 1"),
        ({"model.num_query_groups": 3}, "heads-groups", "nearest groups 2, 4, 1"),
        (MOE | {"parallelism.ep": 3}, "experts-expert-parallel", "nearest ep 2, 4, 1"),
        ({"parallelism.world_size": 3}, "world-size", "nearest world_size 2, 4"),
        (
            MOE | {"parallelism.pp": 1, "parallelism.ep": 4, "parallelism.world_size": 2},
            "world-size-experts",
            "nearest ep 2, 1",
        ),
        ({"model.num_layers": 5}, "layers-pipeline", "nearest pp 1, 5"),
        ({"parallelism.vpp": 3}, "layers-pipeline", "nearest vpp 2, 1"),
        ({"parallelism.vpp": 2, "training.global_batch_size": 3}, "interleaved-micro-batches", "nearest"),
        ({"parallelism.pp": 1, "parallelism.vpp": 2, "parallelism.world_size": 1}, "vpp-needs-pp", "set vpp=null"),
        ({"training.micro_batch_size": 3}, "batch-divides", "nearest training.global_batch_size: 3, 6"),
        (
            {"parallelism.cp": 2, "parallelism.world_size": 4, "training.seq_length": 66},
            "sequence-context-parallel",
            "nearest 64, 68",
        ),
        (
            {
                "parallelism.tp": 4,
                "parallelism.world_size": 8,
                "parallelism.sequence_parallel": True,
                "training.seq_length": 66,
            },
            "sequence-parallel-length",
            "nearest 64, 68",
        ),
        ({"parallelism.layout": "Ettt|ttL"}, "pipeline-layout", "model.num_layers=4"),
        ({"parallelism.layout": "Extt|ttL"}, "pipeline-layout", "t (decoder layer)"),
        (
            {"cluster.gpus_per_node": 4, "parallelism.world_size": 14, "parallelism.pp": 1},
            "world-size-nodes",
            "nearest world_size 12, 16",
        ),
        (
            {"cluster.gpus_per_node": 8, "cluster.nodes": 1, "parallelism.world_size": 16},
            "world-size-nodes",
            "needs 2 nodes of cluster.gpus_per_node=8, and cluster.nodes=1: raise it",
        ),
        ({"training.steady_window": [4, 9]}, "steady-window", "training.train_iters to 9"),
        ({"model.num_layers": "four"}, "wrong-type", "a whole number"),
        ({"training.global_batch_size": 0}, "below-one", "1 or more"),
    ],
)
def test_what_is_invalid_is_refused_with_the_setting_and_a_fix(changes: dict[str, Any], rule: str, fix: str) -> None:
    finding = found(changes)[rule]
    assert finding.kind is Kind.INVALID
    assert fix in finding.message


BRIDGE = {
    "trainer.name": "bridge",
    "model.recipe": "a.recipe",
    "model.transformer_impl": "transformer_engine",
    "model.attention_backend": "auto",
}


@pytest.mark.parametrize(
    ("changes", "rule", "kind"),
    [
        (MOE | {"recompute_modules": ["mlp"]}, "mlp-without-dense-layers", Kind.NO_EFFECT),
        ({"recompute_modules": ["moe"]}, "moe-label-without-experts", Kind.NO_EFFECT),
        (MOE | {"recompute_modules": ["shared_experts"]}, "shared-experts-absent", Kind.NO_EFFECT),
        (BRIDGE | {"recompute_modules": ["core_attn"]}, "core-attn-fused", Kind.NO_EFFECT),
        (
            {"recompute_granularity": None, "recompute_modules": ["mlp"]},
            "recompute-modules-unused",
            Kind.NO_EFFECT,
        ),
        (
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 9},
            "full-more-layers",
            Kind.NO_EFFECT,
        ),
        (MOE | {"recompute_modules": ["moe", "moe_act"]}, "nested-in-moe", Kind.RISKY),
        (
            MOE
            | {
                "parallelism.ep": 2,
                "recompute_modules": ["moe"],
                "model.overlap_moe_expert_parallel_comm": True,
                "parallelism.vpp": 2,
                "parallelism.world_size": 4,
            },
            "moe-expert-overlap",
            Kind.RISKY,
        ),
        (
            FP8
            | {
                "recompute_modules": ["mla_up_proj"],
                "model.multi_latent_attention": True,
                "model.experimental_attention_variant": "dsa",
            },
            "mla-up-proj-absorbed",
            Kind.RISKY,
        ),
        (
            GRAPHS | {"recompute_modules": ["core_attn"], "model.cuda_graph_scope": ["attn"]},
            "graph-captures-module",
            Kind.RISKY,
        ),
        (
            MOE | FP8 | {"precision.fp8_recipe": "tensorwise", "recompute_modules": ["moe_act"]},
            "fp8-recompute-engine",
            Kind.OPEN,
        ),
        (
            {"recompute_modules": ["core_attn"], "parallelism.cp": 2, "parallelism.world_size": 4},
            "core-attn-context-parallel",
            Kind.NOTE,
        ),
    ],
)
def test_what_cannot_act_or_is_risky_is_warned_of(changes: dict[str, Any], rule: str, kind: Kind) -> None:
    findings = found(changes)
    assert findings[rule].kind is kind
    assert not any(finding.rejects() for finding in findings.values())


def test_rules_follow_the_release_they_restate() -> None:
    overlapped = MOE | {
        "parallelism.ep": 2,
        "parallelism.vpp": 2,
        "recompute_modules": ["moe"],
        "model.overlap_moe_expert_parallel_comm": True,
    }
    assert found(overlapped, "0.20.0")["moe-expert-overlap"].kind is Kind.INVALID
    delta = {"recompute_modules": ["gdn_norm_out"]}
    assert "recompute-module-label" in found(delta)
    assert found(delta, "0.20.0")["gdn-norm-out-gdn"].kind is Kind.INVALID
    fits = delta | {"model.experimental_attention_variant": "gated_delta_net", "model.linear_attention_freq": 2}
    assert "gdn-norm-out-gdn" not in found(fits | {"model.linear_num_key_heads": 16}, "0.20.0")
    graphs = GRAPHS | {"recompute_modules": ["mla_up_proj"], "model.multi_latent_attention": True}
    attention = graphs | {"model.cuda_graph_scope": "attn"}
    assert "graph-recompute" in found(attention, "0.15.3")
    assert "graph-recompute" not in found(attention)


def test_an_empty_list_is_the_control_and_null_is_core_attn() -> None:
    fused = BRIDGE | {"model.num_moe_experts": None}
    assert "core-attn-fused" not in found(fused | {"recompute_modules": []})
    assert "core-attn-fused" in found(fused | {"recompute_modules": None})


def test_dense_layers_among_moe_layers_keep_mlp_useful() -> None:
    mixed = MOE | {"recompute_modules": ["mlp"], "model.moe_layer_freq": [0, 1, 1, 1]}
    assert "mlp-without-dense-layers" not in found(mixed)
    assert "mlp-without-dense-layers" in found(mixed | {"model.moe_layer_freq": [1, 1, 1, 1]})
    assert "mlp-without-dense-layers" not in found(mixed | {"model.moe_layer_freq": 2})


def test_what_bridges_precision_recipe_decides_is_left_open() -> None:
    told = FP8 | {"recompute_modules": ["layernorm"], "precision.recipe_name": "bf16_with_fp8_delayed_scaling_mixed"}
    assert "fp8-delayed-scaling" not in found(told | {"trainer.name": "bridge"})


def test_nearest_values_come_first() -> None:
    assert near(6, [1, 2, 4, 8, 16, 32]) == "4, 8, 2, 1"
    assert near(3, []) == "none"


NAMED = re.compile(r"(model|parallelism|training|precision|cluster)\.\w+|recompute_\w+|cuda_graph_\w+")
WORDS = ["", "full", "selective", "recipe", "Ett|ttL", "(t|)*999999999", "t*99999999999999999999", "(((", "é\x1b[2J"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
SETTINGS = sorted({spelling(name) for name in FIELDS} | {"trainer.name", "trainer.overrides", "cluster.nodes"})
GROUPS = ["model", "parallelism", "precision", "training", "trainer", "cluster", "revisions"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    changes=st.dictionaries(st.sampled_from(SETTINGS), ANYTHING, max_size=5),
    groups=st.dictionaries(st.sampled_from(GROUPS), ANYTHING, max_size=1),
    core=st.sampled_from(["0.15.3", "0.16.1", "0.20.0", "", "not a version"]),
)
def test_no_input_ends_in_a_traceback(changes: dict[str, Any], groups: dict[str, Any], core: str) -> None:
    candidate = Candidate("any", changed(changes) | groups)
    plan = make_plan("fuzz", [candidate, candidate], known={}, repeats=2, revision=Revision(core))
    assert all(line.isprintable() for line in whole(plan))
    as_json(plan)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    changes=st.dictionaries(
        st.sampled_from(SETTINGS),
        st.none() | st.booleans() | st.integers(-1, 6) | st.sampled_from([*WORDS, ["moe"], ["mlp", "x"], [1, 0]]),
        max_size=6,
    )
)
def test_every_refusal_names_a_setting(changes: dict[str, Any]) -> None:
    for finding in found(MOE | changes).values():
        if finding.kind is Kind.INVALID:
            assert NAMED.search(finding.message), finding
