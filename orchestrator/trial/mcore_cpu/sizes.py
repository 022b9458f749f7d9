"""Numbers of a model that count something, and what they must be for the model to be built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.trial.mcore_cpu.request import Request

_SIZES = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "num_moe_experts",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "moe_router_topk",
    "mtp_num_layers",
)
"""Settings of `model` that count something; what does not apply is null."""


def size_problems(request: Request) -> Iterator[str]:
    """What is wrong with the sizes of a request's model, each in one line."""
    transformer, model = request.transformer, request.model
    named = [(name, transformer[name]) for name in _SIZES if name in transformer]
    named += [(name, model[name]) for name in ("vocab_size", "make_vocab_size_divisible_by") if name in model]
    for name, value in named:
        if value is not None and not is_count(value):
            yield f"model.{name}={value} must be a whole number above zero"
    experts, chosen = transformer.get("num_moe_experts"), transformer.get("moe_router_topk", 2)
    if experts is not None and chosen > experts:
        yield f"model.moe_router_topk={chosen} is more than model.num_moe_experts={experts}"
    frequency = transformer.get("moe_layer_freq", 1)
    if not (is_count(frequency) or (isinstance(frequency, list) and set(frequency) <= {0, 1})):
        yield (
            f"model.moe_layer_freq={frequency} must be a whole number above zero (every such layer has experts), or a "
            "list with 1 for a layer with experts and 0 for one without"
        )
    rotary = transformer.get("qk_pos_emb_head_dim")
    if request.multi_latent_attention and isinstance(rotary, int) and rotary % 2:
        yield f"model.qk_pos_emb_head_dim={rotary} must be even: rotary embeddings turn pairs"
    biased = experts is not None and transformer.get("add_bias_linear", True)
    if biased and transformer.get("moe_shared_expert_intermediate_size") is not None:
        yield "model.add_bias_linear=true: shared experts have no bias, set it to false"
    if biased and transformer.get("moe_grouped_gemm"):
        yield "model.add_bias_linear=true: grouped experts (model.moe_grouped_gemm=true) have no bias, set one to false"


def is_count(value: Any) -> bool:
    """Whether a value is a whole number above zero."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
