"""What known recipes set where a request leaves it to them: a stand-in for asking the recipe itself.

That needs Megatron Bridge; this was written down from 0.3.1 (recipes/*.py, `_pretrain_common`, models/*_bridge.py and
*_provider.py). A prediction that uses it says so; what a recipe itself answers, or a run recorded, goes before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REVISION = "Megatron Bridge 0.3.1"


@dataclass(frozen=True)
class Recipe:
    """Settings by section, in the framework's names."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    ddp: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    comm_overlap: bool = False
    """It has a CommOverlapConfig, which overlaps the reduction of gradients only where there are several data-parallel
    ranks (comm_overlap.py, _get_optimizer_overlap_cfgs)."""


DEFAULT = Recipe(
    model={
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        "gradient_accumulation_fusion": True,
        "bias_activation_fusion": True,
        "moe_grouped_gemm": True,
        "transformer_impl": "transformer_engine",
    },
    # MixedPrecisionConfig has this recipe also where nothing is in FP8, and hands it to the optimizer: FusedAdam then
    # keeps no masters of its own (use_precision_aware_optimizer_no_fp8_or_ds_fp8).
    optimizer={"fp8_recipe": "tensorwise", "use_precision_aware_optimizer": False},
    ddp={"grad_reduce_in_fp32": True, "use_distributed_optimizer": True, "overlap_grad_reduce": True},
    train={"micro_batch_size": 2, "global_batch_size": 32},
)
"""What `_pretrain_common` and `bf16_mixed` set for every recipe that does not say otherwise."""

_IN_BF16 = {
    "use_precision_aware_optimizer": True,
    "main_grads_dtype": "bf16",
    "main_params_dtype": "fp32",
    "exp_avg_dtype": "bf16",
    "exp_avg_sq_dtype": "bf16",
}
_CORE_ATTENTION = {"recompute_granularity": "selective", "recompute_modules": None}
_DEEPSEEK = {
    **_CORE_ATTENTION, "moe_shared_expert_overlap": True, "moe_aux_loss_coeff": 0.0001, "apply_rope_fusion": False,
}  # fmt: skip

_MOONLIGHT = Recipe(
    model={
        **_DEEPSEEK, "seq_length": 4096, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1,
        "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1, "sequence_parallel": True,
    },
    optimizer=_IN_BF16,
    ddp={"grad_reduce_in_fp32": False},
    train={"micro_batch_size": 1, "global_batch_size": 2048},
    comm_overlap=True,
)  # fmt: skip
_DEEPSEEK_V3 = Recipe(
    model={
        **_DEEPSEEK, "seq_length": 4096, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 16,
        "expert_model_parallel_size": 64, "expert_tensor_parallel_size": 1, "sequence_parallel": True,
        "mtp_num_layers": 1, "pipeline_model_parallel_layout": "Et*4|(t*4|)*14tmL",
    },
    optimizer=_IN_BF16,
    ddp={"grad_reduce_in_fp32": False},
    train={"micro_batch_size": 1, "global_batch_size": 4096},
    comm_overlap=True,
)  # fmt: skip
_LLAMA3_70B = Recipe(
    model={
        "apply_rope_fusion": True, "seq_length": 8192, "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 5, "context_parallel_size": 2,
        "sequence_parallel": True,
    },
    train={"micro_batch_size": 1, "global_batch_size": 512},
    comm_overlap=True,
)  # fmt: skip
_LLAMA3_70B_SFT = Recipe(
    model={
        "apply_rope_fusion": True, "cross_entropy_fusion_impl": "native", "seq_length": 4096,
        "tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4,
    },
    ddp={"overlap_grad_reduce": False},
    train={"micro_batch_size": 1, "global_batch_size": 8},
)  # fmt: skip
_QWEN3 = {"bias_activation_fusion": False}
"""Megatron Core's default: models/qwen/qwen_provider.py leaves it alone, as the finished configurations of runs say."""
_QWEN3_30B = Recipe(
    model={
        "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
        "bias_activation_fusion": False, "moe_aux_loss_coeff": 0.001, "seq_length": 4096,
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1,
        "sequence_parallel": True, **_QWEN3,
    },
)  # fmt: skip
_QWEN3_NEXT = Recipe(
    model={
        "recompute_granularity": "selective", "recompute_modules": ["layernorm", "moe", "moe_act"],
        "bias_activation_fusion": False, "cross_entropy_fusion_impl": "native", "mtp_num_layers": 1, "seq_length": 4096,
        "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 4, "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1, "moe_router_dtype": "fp32", **_QWEN3,
    },
)  # fmt: skip
_NEMOTRON3_NANO = Recipe(
    model={
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "num_layers": 52, "hidden_size": 2688, "num_attention_heads": 32, "num_query_groups": 2, "kv_channels": 128,
        "ffn_hidden_size": 1856, "vocab_size": 131072, "normalization": "RMSNorm", "gated_linear_unit": False,
        "add_bias_linear": False, "position_embedding_type": "none", "share_embeddings_and_output_weights": False,
        "mamba_num_heads": 64, "mamba_head_dim": 64, "mamba_state_dim": 128, "mamba_num_groups": 8,
        "num_moe_experts": 128, "moe_ffn_hidden_size": 1856, "moe_shared_expert_intermediate_size": 3712,
        "moe_router_topk": 6, "moe_router_score_function": "sigmoid", "moe_router_dtype": "fp32",
        "moe_router_enable_expert_bias": True, "moe_aux_loss_coeff": 0.0001, "moe_token_dispatcher_type": "flex",
        "moe_permute_fusion": True, "use_fused_weighted_squared_relu": True, "cross_entropy_fusion_impl": "native",
        "seq_length": 8192, "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 1,
        "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1, "sequence_parallel": True,
    },
    train={"micro_batch_size": 2, "global_batch_size": 3072},
    comm_overlap=True,
)  # fmt: skip

KNOWN: Mapping[str, Recipe] = {
    "moonlight_16b_pretrain_config": _MOONLIGHT,
    "deepseek_v3_pretrain_config": _DEEPSEEK_V3,
    "llama3_70b_pretrain_config": _LLAMA3_70B,
    "llama3_70b_sft_config": _LLAMA3_70B_SFT,
    "qwen3_30b_a3b_pretrain_config": _QWEN3_30B,
    "qwen3_next_80b_a3b_pretrain_config": _QWEN3_NEXT,
    "nemotron_3_nano_pretrain_config": _NEMOTRON3_NANO,
}
"""By the function's name."""

LOCKED_ENGINES: Mapping[str, str] = {"600d069b824dd5ce50367a311a5a3244478faf22": "2.17.1"}
"""Transformer Engine in the lock file (uv.lock) of Bridge commits that presets pin. An image may have another."""


def recipe_of(dotted: Any) -> tuple[str, Recipe] | None:
    """The recipe of that dotted name and what it is called; None where nothing is written down of it."""
    name = str(dotted or "").rpartition(".")[2]
    return (name, KNOWN[name]) if name in KNOWN else None
