"""Rules and the framework itself, on thousands of random configurations: they accept and refuse the same."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from older_megatron import OLDER, older_release

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules import RULES, Judge, check
from orchestrator.plan.subject import Subject
from orchestrator.plan.verdict import Revision

pytestmark = pytest.mark.integration

EXAMPLES = 3000
HERE = Path(__file__).parent

FRAMEWORK_NAMES = {
    "parallelism.tp": "tensor_model_parallel_size",
    "parallelism.pp": "pipeline_model_parallel_size",
    "parallelism.vpp": "virtual_pipeline_model_parallel_size",
    "parallelism.cp": "context_parallel_size",
    "parallelism.ep": "expert_model_parallel_size",
    "parallelism.etp": "expert_tensor_parallel_size",
    "parallelism.layout": "pipeline_model_parallel_layout",
}
"""Where the framework's name is not the last word of the setting."""

DENSE = {
    "model.num_layers": 4,
    "model.hidden_size": 128,
    "model.num_attention_heads": 8,
    "model.add_bias_linear": False,
}
MOE = DENSE | {
    "model.num_moe_experts": 8,
    "model.moe_grouped_gemm": True,
    "model.moe_token_dispatcher_type": "alltoall",
}
LATENT = MOE | {
    "model.multi_latent_attention": True,
    "model.moe_layer_freq": [0, 1, 1, 1],
    "model.moe_shared_expert_intermediate_size": 64,
}
SELECTIVE = {"recompute_granularity": "selective"}
OVERLAPPED = MOE | {
    "model.overlap_moe_expert_parallel_comm": True,
    "parallelism.ep": 2,
    "precision.params_dtype": "bf16",
}
BASES = [
    DENSE,
    DENSE | SELECTIVE,
    MOE,
    MOE | SELECTIVE,
    LATENT,
    LATENT | SELECTIVE,
    OVERLAPPED,
    MOE | SELECTIVE | {"model.cuda_graph_impl": "transformer_engine", "model.cuda_graph_scope": "attn"},
    MOE | SELECTIVE | {"model.cuda_graph_impl": "local", "model.cuda_graph_scope": ["attn"]},
    DENSE | {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    DENSE | {"model.num_layers": 8, "parallelism.pp": 4},
    DENSE | {"parallelism.pp": 2, "parallelism.layout": "Ett|ttL"},
    MOE | {"precision.fp8": "hybrid", "precision.fp8_recipe": "tensorwise"} | SELECTIVE,
    LATENT | SELECTIVE | {"recompute_modules": ["shared_experts"], "model.moe_shared_expert_overlap": True},
    DENSE | {"parallelism.cp": 2, "model.cp_comm_type": ["p2p"] * 4},
    DENSE | {"model.experimental_attention_variant": "gated_delta_net", "model.linear_attention_freq": 2},
]

VALUES: dict[str, list[Any]] = {
    "recompute_granularity": ["selective", "full", None, "selctive"],
    "recompute_modules": [
        None,
        [],
        ["core_attn"],
        ["moe_act"],
        ["layernorm", "moe_act"],
        ["mla_up_proj", "mlp"],
        ["moe"],
        ["moe", "layernorm"],
        ["shared_experts"],
        ["gdn_norm_out"],
        ["core_atn"],
    ],
    "recompute_method": [None, "uniform", "block", "blok"],
    "recompute_num_layers": [None, 1, 2, 0, -1],
    "parallelism.tp": [1, 2, 3, 4, 8, 16],
    "parallelism.pp": [1, 2, 3, 4],
    "parallelism.vpp": [None, 1, 2, 3],
    "parallelism.cp": [1, 2, 4],
    "parallelism.ep": [1, 2, 4, 3],
    "parallelism.etp": [None, 1, 2],
    "parallelism.sequence_parallel": [True, False],
    "parallelism.layout": [
        None,
        "Ett|ttL",
        "Et|tttL",
        "Et*3|tL",
        "E(t|)*2,tt|L",
        "Et|t|t|tL",
        "Ettt|tmL",
        "Ettt|t|m|L",
        "Ettt|tm|mL",
        "Em|ttttL",
        "ttttL",
        "Etttt|",
        "Ettx|tL",
        "EtttL",
        "ttt|tEL",
        [["embedding", "decoder", "decoder"], ["decoder", "decoder", "loss"]],
        [["embedding", "decoder", "decoder"], ["decoder", "encoder", "decoder", "loss"]],
        [["embedding", " Decoder ", "decoder"], ["decoder", "decoder", "loss"]],
        [["embeding", "decoder", "decoder"], ["decoder", "decoder", "loss"]],
        ["embedding", "loss"],
        [[], []],
    ],
    "precision.params_dtype": ["fp32", "bf16", "fp16"],
    "precision.fp8": [None, "hybrid", "e4m3"],
    "precision.fp8_recipe": [None, "delayed", "tensorwise", "custom"],
    "model.fp8_quantizer_factory": [None, "a.b"],
    "model.fp8_param": [True, False],
    "model.fp4": [None, "e2m1"],
    "model.fp4_recipe": ["nvfp4", "custom"],
    "model.fp4_quantizer_factory": [None, "a.b"],
    "model.fp4_param": [True, False],
    "model.first_last_layers_bf16": [True, False],
    "model.num_layers_at_start_in_bf16": [0, 1, 3, -1],
    "model.num_layers_at_end_in_bf16": [0, 1, 3, -1],
    "model.num_layers": [1, 2, 3, 4, 6, 8],
    "model.num_attention_heads": [1, 2, 4, 6, 8],
    "model.num_query_groups": [None, 1, 2, 3, 4, 8],
    "model.multi_latent_attention": [True, False],
    "model.cache_mla_latents": [True, False],
    "model.rope_type": ["yarn", "rope"],
    "model.rotary_interleaved": [True, False],
    "model.experimental_attention_variant": [None, "gated_delta_net", "dsa"],
    "model.linear_attention_freq": [None, 2, [1, 0, 1, 0]],
    "model.linear_conv_kernel_dim": [None, 4],
    "model.linear_key_head_dim": [None, 128],
    "model.linear_value_head_dim": [None, 128],
    "model.linear_num_key_heads": [None, 4, 16],
    "model.linear_num_value_heads": [None, 6, 32],
    "model.attention_dropout": [0.0, 0.1],
    "model.hidden_dropout": [0.0, 0.1],
    "model.add_bias_linear": [True, False],
    "model.mtp_num_layers": [None, 0, 1, 2],
    "model.num_layers_in_first_pipeline_stage": [None, 1, 2, 3, 0],
    "model.num_layers_in_last_pipeline_stage": [None, 1, 2, 3, -1],
    "model.account_for_embedding_in_pipeline_split": [True, False],
    "model.account_for_loss_in_pipeline_split": [True, False],
    "model.num_moe_experts": [None, 1, 2, 8, 0],
    "model.moe_ffn_hidden_size": [None, 64],
    "model.moe_layer_freq": [1, 2, [1, 1, 1, 1], [0, 1, 1, 1]],
    "model.moe_grouped_gemm": [True, False],
    "model.moe_shared_expert_intermediate_size": [None, 64, 0],
    "model.moe_shared_expert_overlap": [True, False],
    "model.moe_token_dispatcher_type": ["allgather", "alltoall", "flex", "alltoall_seq"],
    "model.moe_enable_deepep": [True, False],
    "model.moe_flex_dispatcher_backend": ["deepep", "hybridep"],
    "model.moe_aux_loss_coeff": [0.0, 0.01, [0.01], [0.01, 0.02]],
    "model.moe_router_topk": [1, 2],
    "model.moe_router_pre_softmax": [True, False],
    "model.moe_router_score_function": ["softmax", "sigmoid"],
    "model.moe_router_load_balancing_type": ["aux_loss", "sinkhorn", "none", ["aux_loss"], ["aux_loss", "sinkhorn"]],
    "model.moe_router_enable_expert_bias": [True, False],
    "model.moe_router_group_topk": [None, 1, 2, 4],
    "model.moe_router_num_groups": [None, 2, 3],
    "model.moe_router_padding_for_fp8": [True, False],
    "model.moe_router_padding_for_quantization": [True, False],
    "model.moe_expert_capacity_factor": [None, 1.0, -1.0],
    "model.moe_pad_expert_input_to_capacity": [True, False],
    "model.moe_input_jitter_eps": [None, 0.01],
    "model.moe_layer_recompute": [True, False],
    "model.overlap_moe_expert_parallel_comm": [True, False],
    "model.delay_wgrad_compute": [True, False],
    "model.ep_overlap_early_attn_memory_release": [True, False],
    "model.moe_use_legacy_grouped_gemm": [True, False],
    "model.distribute_saved_activations": [True, False],
    "model.cpu_offloading": [True, False],
    "model.cpu_offloading_num_layers": [0, 1, 4, -1],
    "model.fine_grained_activation_offloading": [True, False],
    "model.offload_modules": [[], ["core_attn"], ["attn_proj"], ["attn_proj", "core_attn"], ["mlp"], None],
    "model.enable_cuda_graph": [True, False],
    "model.external_cuda_graph": [True, False],
    "model.cuda_graph_impl": ["none", "local", "transformer_engine", "full_iteration"],
    "model.cuda_graph_scope": [
        "full",
        "attn",
        None,
        [],
        ["attn"],
        ["attn", "mlp"],
        ["moe"],
        ["moe_router"],
        ["moe_router", "moe_preprocess"],
        ["moe_preprocess"],
        "attn,moe_router",
        "full_iteration",
        ["full", "attn"],
        ["full"],
        "everything",
        "",
    ],
    "model.cp_comm_type": [None, "p2p", ["p2p"] * 4],
}

NOT_COMPARED = {
    "world_size": "no field of the configuration: groups are made later",
    "seq_length": "no field of the configuration",
    "micro_batch_size": "no field of the configuration",
    "global_batch_size": "no field of the configuration",
    "train_iters": "no field of the configuration",
    "steady_window": "no field of the configuration",
    "bf16": "written as precision.params_dtype",
    "fp16": "written as precision.params_dtype",
    "hidden_size": "only widths are derived from it here",
    "ffn_hidden_size": "judged while the layers are built",
    "attention_backend": "only a warning depends on it",
    "transformer_impl": "only a warning depends on it",
    "apply_rope_fusion": "compared for latent attention alone: elsewhere it asks whether Transformer Engine is there",
    "is_hybrid_model": "only a warning depends on it",
    "hybrid_override_pattern": "a field of Bridge's providers",
}
"""Fields that rules read and the comparison leaves out, with the reason."""

AT_ONCE = (Judge.RECOMPUTE, Judge.CONFIG)
"""Rules that restate what the framework refuses while the configuration is made."""

EXCEPTIONS: dict[str, tuple[Callable[[set[str], str], bool], str]] = {
    "below-one": (
        lambda rules, message: bool({"below-one", "wrong-type"} & rules),
        "a size of zero or a value of another type: the configuration takes some of them, and what follows cannot",
    ),
    "forgotten-import": (
        lambda rules, message: "name 'warnings' is not defined" in message and "moe-sequence-parallel" in rules,
        "0.15.3 fails on its own warning where ep and tp exceed one without sequence_parallel, which no training takes",
    ),
}
"""Where the two may differ, and why. The first item gets the ids of the rules that refuse and the framework's words."""

PAIRS = [(path, value) for path, values in VALUES.items() for value in values]
LATENT_ROPE = [{"model.multi_latent_attention": True, "model.apply_rope_fusion": True}, {}, {}, {}]


class Oracle:
    """One Megatron Core in a process of its own."""

    def __init__(self, first_on_path: Path | None, program: str = "mcore_oracle.py", *arguments: str) -> None:
        environment = os.environ | {"PYTHONHASHSEED": "0"}  # its messages list sets
        if first_on_path is not None:
            environment["PYTHONPATH"] = str(first_on_path)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.version = str(self._read()["version"])

    def ask(self, fields: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise AssertionError("the Megatron Core process ended")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


@pytest.fixture(scope="module", params=["installed", OLDER])
def oracle(request: pytest.FixtureRequest) -> Iterator[Oracle]:
    asked = Oracle(None if request.param == "installed" else older_release())
    if request.param == OLDER:
        assert asked.version.startswith(OLDER)
    yield asked
    asked.close()


def as_request(told: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {"trainer": {"name": "mcore_cpu"}}
    for path, value in told.items():
        *groups, name = path.split(".")
        inner = request
        for part in groups:
            inner = inner.setdefault(part, {})
        inner[name] = copy.deepcopy(value)
    return request


def as_fields(told: dict[str, Any]) -> dict[str, Any]:
    """The framework's own arguments for the same settings, written down apart from the code under test."""
    fields: dict[str, Any] = {}
    for path, value in told.items():
        name = FRAMEWORK_NAMES.get(path, path.split(".")[-1])
        if name == "params_dtype":
            fields |= {"bf16": value == "bf16", "fp16": value == "fp16"}
        elif name != "fp8_recipe" or value is not None:
            fields[name] = value
    return fields


CHANGES = st.lists(st.sampled_from(PAIRS), max_size=6, unique_by=lambda pair: pair[0]).map(dict)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(base=st.sampled_from(BASES), changes=CHANGES, rope=st.sampled_from(LATENT_ROPE))
def test_rules_and_framework_accept_and_refuse_the_same(
    oracle: Oracle, base: dict[str, Any], changes: dict[str, Any], rope: dict[str, Any]
) -> None:
    told = base | changes | rope
    answer = oracle.ask(as_fields(told))
    findings = check(Subject.of(as_request(told), Revision(oracle.version)))
    refusing = {finding.rule for finding, judge in findings if finding.kind is Kind.INVALID and judge in AT_ONCE}
    event("accepted" if answer["ok"] else "refused")
    if bool(refusing) == answer["ok"]:
        every = {finding.rule for finding, _ in findings if finding.kind is Kind.INVALID}
        explained = [name for name, (holds, _) in EXCEPTIONS.items() if holds(every, answer["message"] or "")]
        assert explained, (told, answer, refusing)


@pytest.mark.parametrize("release", ["installed", OLDER])
def test_the_classes_alone_say_what_the_whole_package_says(release: str) -> None:
    place = None if release == "installed" else older_release()
    whole, alone = Oracle(place), Oracle(place, "mcore_oracle.py", "classes")
    try:
        assert alone.version == whole.version
        for base in BASES[::3]:
            for path, value in PAIRS:
                fields = as_fields(base | {path: value})
                assert alone.ask(fields) == whole.ask(fields), fields
    finally:
        whole.close()
        alone.close()


LAYOUT_RULES = {"world-size", "world-size-experts", "vpp-needs-pp", "layers-pipeline", "batch-divides"}


@pytest.fixture(scope="module")
def groups_oracle() -> Iterator[Oracle]:
    asked = Oracle(None, "mcore_groups_oracle.py")
    yield asked
    asked.close()


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    asked=st.fixed_dictionaries(
        {
            "world_size": st.sampled_from([1, 2, 4, 6, 8, 12, 16]),
            "tp": st.sampled_from([1, 1, 2, 3]),
            "pp": st.sampled_from([1, 1, 2, 4]),
            "vpp": st.sampled_from([None, None, 1, 2]),
            "cp": st.sampled_from([1, 1, 2]),
            "ep": st.sampled_from([1, 2, 4]),
            "etp": st.sampled_from([None, 1, 2]),
            "num_layers": st.sampled_from([2, 4, 6, 8]),
            "micro_batch_size": st.sampled_from([1, 2]),
            "global_batch_size": st.sampled_from([4, 6, 12, 16, 48]),
        }
    )
)
def test_layout_and_batch_are_refused_where_groups_stages_or_batches_cannot_be_made(
    groups_oracle: Oracle, asked: dict[str, Any]
) -> None:
    told = {f"parallelism.{name}": asked[name] for name in ("world_size", "tp", "pp", "vpp", "cp", "ep", "etp")}
    told |= {f"training.{name}": asked[name] for name in ("micro_batch_size", "global_batch_size")}
    told |= {"model.num_layers": asked["num_layers"], "model.num_moe_experts": asked["ep"]}
    answer = groups_oracle.ask(asked)
    findings = check(Subject.of(as_request(told), Revision(groups_oracle.version)))
    refusing = {finding.rule for finding, _ in findings if finding.rule in LAYOUT_RULES}
    event("accepted" if answer["ok"] else "refused")
    assert bool(refusing) != answer["ok"], (asked, answer, refusing)


def test_every_field_that_a_rule_reads_is_compared_or_the_reason_is_given() -> None:
    from orchestrator.plan.fields import FIELDS

    compared = {FRAMEWORK_NAMES.get(path, path.split(".")[-1]) for path in VALUES}
    assert set(FIELDS) - compared == set(NOT_COMPARED)


def test_every_rule_has_a_source_and_an_identity_of_its_own_per_release() -> None:
    for core in ("0.15.3", "0.16.1", "0.20.0"):
        revision = Revision(core)
        active = [rule.id for rule in RULES if rule.restates(revision)]
        assert len(active) == len(set(active))
    assert all(rule.source for rule in RULES)
