"""Model FLOPs of a step against products counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from orchestrator.trial.mcore_cpu.flops import step_flops

DENSE: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 8,
    "ffn_hidden_size": 32,
    "num_attention_heads": 2,
    "num_query_groups": 1,
    "kv_channels": 4,
    "gated_linear_unit": False,
    "num_moe_experts": None,
    "mtp_num_layers": None,
    "multi_latent_attention": False,
}


def flops(**settings: Any) -> int:
    return step_flops(SimpleNamespace(**{**DENSE, **settings}), tokens=10, seq_length=6, vocab_size=100)


def test_dense_layers_with_grouped_queries() -> None:
    attention = 8 * (8 + 2 * 4) + 8 * 8 + 6 * 8 / 2 + 6 * 8 / 2
    assert flops() == 6 * 10 * (2 * (attention + 2 * 8 * 32) + 8 * 100)


def test_a_gated_mlp_has_a_third_product() -> None:
    assert flops(gated_linear_unit=True) - flops() == 6 * 10 * 2 * 8 * 32


def test_experts_count_as_often_as_a_token_is_routed() -> None:
    experts = {"num_moe_experts": 4, "moe_layer_freq": [0, 1], "moe_ffn_hidden_size": 16, "moe_router_topk": 2}
    found = flops(**experts, moe_shared_expert_intermediate_size=24)
    assert found - flops() == 6 * 10 * (2 * 2 * 8 * 16 + 2 * 8 * 24 + 8 * 4 - 2 * 8 * 32)


def test_latent_attention_goes_down_and_up() -> None:
    latent = {
        "multi_latent_attention": True,
        "q_lora_rank": None,
        "kv_lora_rank": 3,
        "qk_head_dim": 4,
        "qk_pos_emb_head_dim": 2,
        "v_head_dim": 5,
    }
    attention = 8 * 12 + 8 * (3 + 2) + 3 * (8 + 10) + 10 * 8 + 6 * (12 + 10) / 2
    assert flops(**latent) == 6 * 10 * (2 * (attention + 2 * 8 * 32) + 8 * 100)
    assert flops(**{**latent, "q_lora_rank": 2}) - flops(**latent) == 6 * 10 * 2 * (2 * (8 + 12) - 8 * 12)


def test_predicted_tokens_add_a_layer_a_projection_and_logits() -> None:
    layer = (flops() - 6 * 10 * 8 * 100) // 2
    assert flops(mtp_num_layers=1) - flops() == layer + 6 * 10 * (2 * 8 * 8 + 8 * 100)
