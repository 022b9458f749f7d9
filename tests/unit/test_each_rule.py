"""Each rule on the smallest configuration that it speaks of: what it says names a setting, and where it is from."""

from __future__ import annotations

from typing import Any

import pytest
from test_rules import FP8, GRAPHS, MOE, NAMED, changed

from orchestrator.plan.rules import RULES, check
from orchestrator.plan.subject import Subject
from orchestrator.plan.verdict import Revision

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "wrong-type": ("0.16.1", {"model.num_layers": "x"}),
    "below-one": ("0.16.1", {"model.num_moe_experts": 0}),
    "dropout-range": ("0.16.1", {"model.hidden_dropout": 2}),
    "recipe-without-bridge": ("0.16.1", {"model.recipe": "my_recipes.small_config", "model.hidden_size": None}),
    "recipe-missing": ("0.16.1", {"trainer.name": "bridge"}),
    "recompute-granularity": ("0.16.1", {"recompute_granularity": "selctive"}),
    "recompute-method": ("0.16.1", {"recompute_method": "blok"}),
    "full-needs-method": ("0.16.1", {"recompute_granularity": "full"}),
    "full-needs-num-layers": ("0.16.1", {"recompute_granularity": "full"}),
    "selective-without-num-layers": ("0.16.1", {"recompute_num_layers": 1}),
    "recompute-module-label": ("0.16.1", {"recompute_modules": ["gdn_norm_out"]}),
    "full-num-layers-below-one": ("0.16.1", {"recompute_granularity": "full", "recompute_num_layers": -1}),
    "distributed-activations-sequence-parallel": (
        "0.16.1",
        {"model.distribute_saved_activations": True, "parallelism.sequence_parallel": True},
    ),
    "moe-layer-recompute-full": ("0.16.1", {"model.moe_layer_recompute": True, "recompute_granularity": "full"}),
    "recompute-modules-unused": ("0.16.1", {"recompute_modules": ["moe"], "recompute_granularity": None}),
    "recompute-method-unused": ("0.16.1", {"recompute_method": "uniform"}),
    "recompute-num-layers-unused": ("0.16.1", {"recompute_num_layers": 1, "recompute_granularity": None}),
    "moe-act-grouped-gemm": ("0.16.1", {"recompute_modules": ["moe_act"]}),
    "mla-up-proj-mla": ("0.16.1", {"recompute_modules": ["mla_up_proj", "mlp"]}),
    "fp8-delayed-scaling": ("0.16.1", FP8 | {"recompute_modules": ["moe_act"]}),
    "fp8-recompute-engine": (
        "0.16.1",
        FP8 | {"precision.fp8_recipe": "custom", "recompute_modules": ["moe", "layernorm"]},
    ),
    "gdn-norm-out-gdn": ("0.16.1", {"recompute_modules": ["gdn_norm_out"]}),
    "moe-expert-overlap": (
        "0.16.1",
        {"model.moe_layer_recompute": True, "model.overlap_moe_expert_parallel_comm": True},
    ),
    "mla-up-proj-absorbed": (
        "0.16.1",
        FP8 | {"model.cache_mla_latents": True, "recompute_modules": ["mla_up_proj", "mlp"]},
    ),
    "mlp-without-dense-layers": ("0.16.1", MOE | {"recompute_modules": ["mla_up_proj", "mlp"]}),
    "moe-label-without-experts": ("0.16.1", {"recompute_modules": ["moe_act"]}),
    "shared-experts-absent": ("0.16.1", MOE | {"recompute_modules": ["shared_experts"]}),
    "core-attn-fused": (
        "0.16.1",
        {
            "trainer.name": "bridge",
            "model.transformer_impl": "transformer_engine",
            "model.attention_backend": "auto",
            "recompute_modules": ["core_attn"],
        },
    ),
    "layernorm-fused": (
        "0.16.1",
        {
            "trainer.name": "bridge",
            "model.transformer_impl": "transformer_engine",
            "recompute_modules": ["layernorm"],
            "model.multi_latent_attention": False,
            "model.num_moe_experts": None,
        },
    ),
    "core-attn-context-parallel": ("0.16.1", {"recompute_modules": None, "parallelism.cp": 4}),
    "full-on-hybrid": ("0.16.1", {"model.is_hybrid_model": True, "recompute_granularity": "full"}),
    "cpu-offloading-layers": ("0.16.1", {"model.cpu_offloading_num_layers": -1, "model.cpu_offloading": True}),
    "cpu-offloading-pipeline": ("0.16.1", {"model.cpu_offloading": True}),
    "cpu-offloading-recompute": ("0.16.1", {"model.cpu_offloading": True}),
    "cpu-offloading-graphs": ("0.16.1", GRAPHS | {"model.cpu_offloading": True}),
    "offloading-both": ("0.16.1", {"model.cpu_offloading": True, "model.fine_grained_activation_offloading": True}),
    "offload-modules": ("0.16.1", {"model.fine_grained_activation_offloading": True}),
    "world-size": ("0.16.1", {"parallelism.tp": 2}),
    "world-size-experts": ("0.16.1", {"parallelism.ep": 2}),
    "sequence-parallel-needs-tp": ("0.16.1", {"parallelism.sequence_parallel": True}),
    "width-tensor-parallel": ("0.16.1", {"parallelism.tp": 3}),
    "world-size-nodes": ("0.16.1", {"cluster.nodes": 3, "cluster.gpus_per_node": 8}),
    "tensor-parallel-over-nodes": ("0.16.1", {"cluster.gpus_per_node": 8, "parallelism.tp": 16}),
    "vpp-needs-pp": ("0.16.1", {"parallelism.pp": 1, "parallelism.layout": "Ettt|tmL"}),
    "layers-pipeline": ("0.16.1", {"parallelism.pp": 3}),
    "stage-layers-and-accounts": (
        "0.16.1",
        {"model.num_layers_in_last_pipeline_stage": 3, "model.account_for_loss_in_pipeline_split": True},
    ),
    "layout-and-stage-layers": (
        "0.16.1",
        {"parallelism.layout": "Et*3|tL", "model.num_layers_in_last_pipeline_stage": 3},
    ),
    "layers-uneven": ("0.16.1", {"model.num_layers_in_first_pipeline_stage": 0}),
    "layers-accounted": ("0.16.1", {"model.account_for_embedding_in_pipeline_split": True}),
    "pipeline-layout": ("0.16.1", {"parallelism.layout": "Ettt|tmL"}),
    "full-with-mtp": (
        "0.16.1",
        {"recompute_method": "uniform", "model.mtp_num_layers": 2, "recompute_granularity": "full"},
    ),
    "block-skips-mtp": (
        "0.16.1",
        {"recompute_granularity": "full", "recompute_method": "block", "model.mtp_num_layers": 1},
    ),
    "full-more-layers": ("0.16.1", {"recompute_num_layers": 2, "recompute_granularity": "full", "model.num_layers": 2}),
    "full-no-layers": (
        "0.16.1",
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 0},
    ),
    "full-dropout": ("0.16.1", {"recompute_granularity": "full", "model.hidden_dropout": 2}),
    "batch-divides": ("0.16.1", {"parallelism.world_size": 16}),
    "steady-window-early": ("0.16.1", {"training.steady_window": [1, 5]}),
    "sequence-context-parallel": ("0.16.1", {"training.seq_length": 30, "parallelism.cp": 2}),
    "sequence-parallel-length": ("0.16.1", {"parallelism.sequence_parallel": True, "parallelism.tp": 3}),
    "interleaved-micro-batches": ("0.16.1", {"training.global_batch_size": 5, "parallelism.vpp": 2}),
    "heads-tensor-parallel": ("0.16.1", {"parallelism.tp": 3}),
    "groups-tensor-parallel": ("0.16.1", {"parallelism.tp": 3}),
    "heads-groups": ("0.16.1", {"model.num_attention_heads": 1}),
    "mla-rotary-interleaved": ("0.16.1", {"model.rotary_interleaved": True, "model.multi_latent_attention": True}),
    "mla-rope-fusion": (
        "0.16.1",
        {"model.multi_latent_attention": True, "model.apply_rope_fusion": True, "model.rope_type": "rope"},
    ),
    "mla-cached-latents": (
        "0.16.1",
        {"model.multi_latent_attention": True, "model.apply_rope_fusion": True, "model.cache_mla_latents": True},
    ),
    "gated-delta-net": ("0.16.1", {"model.experimental_attention_variant": "gated_delta_net"}),
    "variant-context-parallel": ("0.16.1", {"parallelism.cp": 2, "model.experimental_attention_variant": "dsa"}),
    "sparse-rope-fusion": ("0.16.1", {"model.apply_rope_fusion": True, "model.experimental_attention_variant": "dsa"}),
    "cp-comm-type": ("0.16.1", {"parallelism.cp": 2, "model.cp_comm_type": ["p2p"]}),
    "experts-missing": ("0.16.1", {"parallelism.ep": 2}),
    "experts-expert-parallel": ("0.16.1", MOE | {"parallelism.ep": 3}),
    "moe-width-without-experts": ("0.16.1", {"model.moe_ffn_hidden_size": 64}),
    "moe-layer-freq": ("0.16.1", MOE | {"model.num_layers": 1, "model.moe_layer_freq": [0, 1, 1, 1]}),
    "moe-top-k": ("0.16.1", {"model.num_moe_experts": 1}),
    "moe-top-one": ("0.16.1", {"model.moe_router_topk": 1}),
    "moe-groups": ("0.16.1", {"model.moe_router_group_topk": 1}),
    "moe-expert-bias": ("0.16.1", {"model.moe_router_enable_expert_bias": True}),
    "moe-balancing-coefficients": ("0.16.1", {"model.moe_router_load_balancing_type": ["aux_loss"]}),
    "moe-capacity-balancing": (
        "0.16.1",
        {"model.moe_router_load_balancing_type": "sinkhorn", "model.moe_expert_capacity_factor": 1.0},
    ),
    "moe-padding-capacity": ("0.16.1", {"model.moe_pad_expert_input_to_capacity": True}),
    "moe-flex-padding": (
        "0.16.1",
        {"model.moe_pad_expert_input_to_capacity": True, "model.moe_token_dispatcher_type": "flex"},
    ),
    "moe-flex-alone": ("0.16.1", MOE | {"model.moe_token_dispatcher_type": "flex"}),
    "deepep-flex": ("0.16.1", {"model.moe_enable_deepep": True}),
    "deepep-hybridep": ("0.16.1", {"model.moe_flex_dispatcher_backend": "hybridep", "model.moe_enable_deepep": True}),
    "shared-experts-size": ("0.16.1", {"model.moe_shared_expert_intermediate_size": 0}),
    "shared-experts-dispatcher": (
        "0.16.1",
        {"model.moe_shared_expert_overlap": True, "model.moe_shared_expert_intermediate_size": 0},
    ),
    "moe-bias-etp": ("0.16.1", MOE | {"model.add_bias_linear": True, "parallelism.tp": 16}),
    "moe-padding-quantized": ("0.16.1", {"model.moe_router_padding_for_fp8": True}),
    "moe-sequence-parallel": ("0.16.1", MOE | {"parallelism.tp": 2}),
    "expert-overlap-recompute": (
        "0.16.1",
        {"model.overlap_moe_expert_parallel_comm": True, "recompute_method": "blok"},
    ),
    "expert-overlap-experts": ("0.16.1", {"model.overlap_moe_expert_parallel_comm": True}),
    "expert-overlap-precision": (
        "0.16.1",
        {"model.overlap_moe_expert_parallel_comm": True, "precision.params_dtype": "fp32"},
    ),
    "expert-overlap-stages": ("0.16.1", {"model.overlap_moe_expert_parallel_comm": True}),
    "expert-overlap-mtp": ("0.16.1", {"model.overlap_moe_expert_parallel_comm": True, "model.mtp_num_layers": 2}),
    "expert-overlap-graphs": (
        "0.16.1",
        {"model.cuda_graph_impl": "full_iteration", "model.overlap_moe_expert_parallel_comm": True},
    ),
    "delayed-weight-gradient": ("0.16.1", {"model.delay_wgrad_compute": True}),
    "delayed-weight-gradient-engine": ("0.16.1", GRAPHS | {"model.delay_wgrad_compute": True}),
    "early-attention-release": ("0.16.1", {"model.ep_overlap_early_attn_memory_release": True}),
    "fp8-param-without-fp8": ("0.16.1", {"model.fp8_param": True}),
    "fp4-param-without-fp4": ("0.16.1", {"model.fp4_param": True}),
    "fp4-and-fp8": ("0.16.1", FP8 | {"model.fp4": "e2m1"}),
    "custom-quantizer-factory": ("0.16.1", FP8 | {"precision.fp8_recipe": "custom"}),
    "first-last-layers-bf16": ("0.16.1", FP8 | {"model.first_last_layers_bf16": True}),
    "graph-switches": ("0.16.1", GRAPHS | {"model.enable_cuda_graph": True}),
    "graph-implementation": ("0.16.1", {"model.cuda_graph_impl": "full_iteration"}),
    "graph-scope": ("0.16.1", {"model.cuda_graph_scope": ["full", "attn"]}),
    "graph-scopes-together": ("0.16.1", GRAPHS | {"model.cuda_graph_scope": ["moe_preprocess"]}),
    "graph-scopes-experts": ("0.16.1", GRAPHS | {"model.cuda_graph_scope": ["moe"]}),
    "graph-full-recompute": ("0.16.1", GRAPHS | {"recompute_granularity": "full"}),
    "graph-moe-router": (
        "0.16.1",
        GRAPHS | {"recompute_modules": ["moe", "layernorm"], "model.cuda_graph_scope": "attn,moe_router"},
    ),
    "graph-dropout": ("0.16.1", GRAPHS | {"model.attention_dropout": 0.1, "recompute_modules": ["core_attn"]}),
    "graph-recompute": ("0.15.3", {"model.external_cuda_graph": True}),
    "graph-captures-module": ("0.16.1", GRAPHS | {"recompute_modules": None}),
    "graph-layernorm-router": (
        "0.16.1",
        MOE | GRAPHS | {"recompute_modules": ["layernorm", "moe_act"], "model.cuda_graph_scope": ["moe_router"]},
    ),
    "offloaded-and-replayed": (
        "0.16.1",
        {
            "recompute_modules": ["core_attn"],
            "model.fine_grained_activation_offloading": True,
            "model.offload_modules": ["core_attn"],
        },
    ),
    "shared-experts-overlap": (
        "0.16.1",
        MOE
        | {
            "recompute_modules": ["shared_experts"],
            "model.moe_shared_expert_intermediate_size": 64,
            "model.moe_shared_expert_overlap": True,
        },
    ),
    "steady-window": ("0.16.1", {"training.steady_window": [5, 4]}),
    "nested-in-moe": ("0.16.1", MOE | {"recompute_modules": ["moe", "moe_act"]}),
}
"""By rule, a release that has it and what is changed of a small dense model."""


@pytest.mark.parametrize("rule", EXAMPLES)
def test_each_rule_speaks_of_its_example_and_names_a_setting(rule: str) -> None:
    core, changes = EXAMPLES[rule]
    spoken = {item.rule: item for item, _ in check(Subject.of(changed(changes), Revision(core)))}
    assert rule in spoken
    assert NAMED.search(spoken[rule].message), spoken[rule].message
    assert "None" not in spoken[rule].message
    assert spoken[rule].source


def test_no_rule_is_without_an_example() -> None:
    assert set(EXAMPLES) == {rule.id for rule in RULES}
