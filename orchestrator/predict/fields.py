"""Which settings of a finished configuration a prediction reads: about a tenth of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MODEL = """
account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split activation_func_fp8_input_store
add_bias_linear add_qkv_bias apply_rope_fusion attention_backend attention_output_gate bias_activation_fusion
context_parallel_size cpu_offloading cross_entropy_fusion_impl cross_entropy_loss_fusion cuda_graph_impl
enable_cuda_graph experimental_attention_variant expert_model_parallel_size expert_tensor_parallel_size
external_cuda_graph fine_grained_activation_offloading
ffn_hidden_size first_last_layers_bf16 fp8 fp8_param fp8_recipe gated_linear_unit
gradient_accumulation_fusion hidden_size hybrid_override_pattern
kv_channels kv_lora_rank linear_attention_freq linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads
linear_num_value_heads linear_value_head_dim make_vocab_size_divisible_by mamba_head_dim mamba_num_groups
mamba_num_heads mamba_state_dim moe_aux_loss_coeff moe_ffn_hidden_size moe_grouped_gemm moe_latent_size moe_layer_freq
moe_permute_fusion moe_router_dtype moe_router_enable_expert_bias moe_router_force_load_balancing
moe_router_load_balancing_type moe_router_score_function moe_router_topk moe_shared_expert_gate
moe_shared_expert_intermediate_size moe_shared_expert_overlap moe_token_dispatcher_type mtp_num_layers
multi_latent_attention normalization num_attention_heads num_layers num_layers_at_end_in_bf16
num_layers_at_start_in_bf16 num_layers_in_first_pipeline_stage
num_layers_in_last_pipeline_stage num_moe_experts num_query_groups padded_vocab_size params_dtype
pipeline_model_parallel_layout pipeline_model_parallel_size position_embedding_type q_lora_rank qk_head_dim
qk_layernorm qk_pos_emb_head_dim recompute_granularity recompute_method recompute_modules recompute_num_layers
rope_type rotary_percent seq_length sequence_parallel share_embeddings_and_output_weights should_pad_vocab
tensor_model_parallel_size transformer_impl untie_embeddings_and_output_weights use_fused_weighted_squared_relu
v_head_dim virtual_pipeline_model_parallel_size vocab_size
"""
_OPTIMIZER = """
exp_avg_dtype exp_avg_sq_dtype fp8_recipe main_params_dtype optimizer_cpu_offload store_param_remainders
use_precision_aware_optimizer
"""
_DDP = "grad_reduce_in_fp32 overlap_grad_reduce pad_buckets_for_high_nccl_busbw use_distributed_optimizer"
FP8_LAYERS = (
    "fp8", "fp8_recipe", "fp8_param", "first_last_layers_bf16", "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
)  # fmt: skip
"""What a mixed-precision recipe says of FP8, and hands to the model (Bridge, MixedPrecisionConfig.setup)."""
READ: Mapping[str, frozenset[str]] = {
    "model": frozenset(_MODEL.split()),
    "optimizer": frozenset(_OPTIMIZER.split()),
    "ddp": frozenset(_DDP.split()),
    "train": frozenset(["global_batch_size", "micro_batch_size", "seq_length", "world_size"]),
    "mixed_precision": frozenset(FP8_LAYERS),
    "trainer": frozenset(["name"]),
    "software": frozenset(["transformer_engine"]),
}
"""Names by section, as `build` reads them."""


def only_read(effective: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a finished configuration that predictions read. What is null there stays null: it is no default."""
    found = {}
    for section, names in READ.items():
        settings = effective.get(section)
        if isinstance(settings, Mapping):
            found[section] = {name: settings[name] for name in names if name in settings}
    return found
