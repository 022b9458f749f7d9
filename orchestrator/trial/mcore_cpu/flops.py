"""Model FLOPs of a training step: its matrix products once forward and twice backward, whatever recompute adds.

The convention of Megatron's own figure (num_floating_point_operations): a multiply-add is two operations, and causal
attention needs half of its products.
"""

from __future__ import annotations

from typing import Any

_PASSES = 3
"""Forward, and in backward the gradients of inputs and of weights."""


def step_flops(config: Any, *, tokens: int, seq_length: int, vocab_size: int) -> int:
    """Floating-point operations of one step over all ranks.

    Args:
        config: a finished TransformerConfig or MLATransformerConfig.
        tokens: of the whole global batch.
    """
    layers = [_layer(config, seq_length, experts) for experts in _expert_layers(config)]
    predicted = config.mtp_num_layers or 0
    extra = predicted * (layers[-1] + 2 * config.hidden_size**2)
    logits = (1 + predicted) * config.hidden_size * vocab_size
    products: float = sum(layers) + extra + logits
    return round(2 * _PASSES * tokens * products)


def _expert_layers(config: Any) -> list[bool]:
    """For each layer whether its MLP is one of experts."""
    if config.num_moe_experts is None:
        return [False] * config.num_layers
    frequency = config.moe_layer_freq
    if isinstance(frequency, int):
        return [layer % frequency == 0 for layer in range(config.num_layers)]
    return [bool(item) for item in frequency]


def _layer(config: Any, seq_length: int, experts: bool) -> float:
    """Multiply-adds of one token in one layer."""
    attention = _latent_attention if config.multi_latent_attention else _attention
    return attention(config, seq_length) + (_experts(config) if experts else _mlp(config, config.ffn_hidden_size))


def _attention(config: Any, seq_length: int) -> float:
    queries = config.num_attention_heads * config.kv_channels
    keys = config.num_query_groups * config.kv_channels
    projections = config.hidden_size * (queries + 2 * keys) + queries * config.hidden_size
    return float(projections + seq_length * 2 * queries / 2)


def _latent_attention(config: Any, seq_length: int) -> float:
    heads, hidden = config.num_attention_heads, config.hidden_size
    query = heads * (config.qk_head_dim + config.qk_pos_emb_head_dim)
    value = heads * config.v_head_dim
    rank = config.q_lora_rank
    down = hidden * (config.kv_lora_rank + config.qk_pos_emb_head_dim)
    up = config.kv_lora_rank * (heads * config.qk_head_dim + value)
    to_query = hidden * query if rank is None else rank * (hidden + query)
    return float(to_query + down + up + value * hidden + seq_length * (query + value) / 2)


def _mlp(config: Any, width: int) -> float:
    return float((3 if config.gated_linear_unit else 2) * config.hidden_size * width)


def _experts(config: Any) -> float:
    width = config.moe_ffn_hidden_size or config.ffn_hidden_size
    shared = config.moe_shared_expert_intermediate_size or 0
    router = config.hidden_size * config.num_moe_experts
    return float(config.moe_router_topk * _mlp(config, width) + _mlp(config, shared) + router)
