"""A model's published shapes (a Hugging Face `config.json`) in Megatron Core's field names, as Bridge maps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAME = {
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "vocab_size": "vocab_size",
    "tie_word_embeddings": "share_embeddings_and_output_weights",
    "kv_lora_rank": "kv_lora_rank",
    "q_lora_rank": "q_lora_rank",
    "qk_nope_head_dim": "qk_head_dim",
    "qk_rope_head_dim": "qk_pos_emb_head_dim",
    "v_head_dim": "v_head_dim",
    "moe_intermediate_size": "moe_ffn_hidden_size",
    "aux_loss_alpha": "moe_aux_loss_coeff",
    "router_aux_loss_coef": "moe_aux_loss_coeff",
    "attention_bias": "add_qkv_bias",
    "num_experts_per_tok": "moe_router_topk",
    "partial_rotary_factor": "rotary_percent",
    "linear_conv_kernel_dim": "linear_conv_kernel_dim",
    "linear_key_head_dim": "linear_key_head_dim",
    "linear_num_key_heads": "linear_num_key_heads",
    "linear_num_value_heads": "linear_num_value_heads",
    "linear_value_head_dim": "linear_value_head_dim",
}
_GATED = ("silu", "swish", "gelu_pytorch_tanh")


def megatron_fields(published: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `TransformerConfig` for published shapes; what they do not say is absent."""
    fields = {ours: published[theirs] for theirs, ours in _SAME.items() if theirs in published}
    kind = str(published.get("model_type", ""))
    fields["normalization"] = "RMSNorm"
    fields["gated_linear_unit"] = published.get("hidden_act", "silu") in _GATED
    fields["add_bias_linear"] = False
    fields["qk_layernorm"] = kind.startswith(("deepseek", "qwen3"))
    if "kv_lora_rank" in published:
        fields["multi_latent_attention"] = True
        fields.pop("num_query_groups", None)
        fields.pop("kv_channels", None)
    experts = published.get("n_routed_experts") or published.get("num_experts") or published.get("num_local_experts")
    if experts:
        fields |= _experts(published, int(experts), kind)
    if kind == "qwen3_next":
        fields |= {
            "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": published.get("full_attention_interval", 4),
            "attention_output_gate": True,
        }
    return fields


def _experts(published: Mapping[str, Any], experts: int, kind: str) -> dict[str, Any]:
    layers = int(published.get("num_hidden_layers", 0))
    dense = int(published.get("first_k_dense_replace", 0))
    fields: dict[str, Any] = {
        "num_moe_experts": experts,
        "moe_layer_freq": [0] * dense + [1] * (layers - dense),
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
        "moe_token_dispatcher_type": "alltoall",
    }
    shared = int(published.get("n_shared_experts") or 0) * int(published.get("moe_intermediate_size") or 0)
    shared = int(published.get("shared_expert_intermediate_size") or shared)
    if shared:
        fields["moe_shared_expert_intermediate_size"] = shared
        fields["moe_shared_expert_gate"] = kind == "qwen3_next"
    if published.get("scoring_func") == "sigmoid":
        fields |= {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    if kind.startswith("deepseek"):
        fields["moe_router_dtype"] = "fp32"
    return fields
