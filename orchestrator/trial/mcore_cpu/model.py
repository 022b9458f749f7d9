"""This rank's part of the GPT model, built by Megatron Core."""

from __future__ import annotations

from typing import Any

import megatron.core.models.gpt.gpt_layer_specs as layer_specs
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel

from orchestrator.trial.mcore_cpu.layers import CpuSpecProvider, Norm
from orchestrator.trial.mcore_cpu.request import Request
from orchestrator.trial.mcore_cpu.standins import SeamGoneError


def build_model(request: Request, config: Any) -> list[Any]:
    """One GPTModel per virtual pipeline stage of this rank, or a single one."""
    if not hasattr(layer_specs, "LocalSpecProvider"):
        raise SeamGoneError("megatron.core.models.gpt.gpt_layer_specs.LocalSpecProvider does not exist here")
    layer_specs.LocalSpecProvider = CpuSpecProvider
    if request.parallelism.vpp is None:
        return [_chunk(request, config, None)]
    return [_chunk(request, config, stage) for stage in range(request.parallelism.vpp)]


def _chunk(request: Request, config: Any, stage: int | None) -> Any:
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)
    spec = layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=stage)
    # The block's final norm is not the provider's choice there, but the module's (LNImpl).
    spec.layer_norm = Norm
    prediction = None
    if config.mtp_num_layers:
        like = spec if spec.layer_specs else _layer_of_experts(config)
        prediction = layer_specs.get_gpt_mtp_block_spec(config, like, use_transformer_engine=False, vp_stage=stage)
    arguments = {}
    if not request.multi_latent_attention:
        arguments["rotary_base"] = request.transformer.get("rotary_base", 10000)
        arguments["rotary_percent"] = request.transformer.get("rotary_percent", 1.0)
    return GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=request.padded_vocab_size,
        max_sequence_length=request.training.seq_length,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=request.tied_embeddings,
        position_embedding_type=request.model.get("position_embedding_type", "rope"),
        mtp_block_spec=prediction,
        vp_stage=stage,
        **arguments,
    )


def _layer_of_experts(config: Any) -> Any:
    """What multi-token prediction repeats on a stage without decoder layers, which has no last one to be like: a layer
    of experts where the model has them (as Megatron Bridge, models/gpt_provider.py mtp_block_spec)."""
    return layer_specs.get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention,
        moe_use_legacy_grouped_gemm=config.moe_use_legacy_grouped_gemm,
    )
