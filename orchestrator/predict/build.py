"""A job from settings in the framework's own names (`TransformerConfig`, `OptimizerConfig`, DDP, training)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.predict import job as jobs
from orchestrator.predict.consistent import refuse_inconsistent
from orchestrator.predict.job import (
    Attention,
    Batch,
    DeltaNet,
    Experts,
    Job,
    Layout,
    Mamba,
    Numerics,
    Recompute,
    Shapes,
)
from orchestrator.predict.layer_kinds import layer_kinds
from orchestrator.predict.pipeline_layout import LayoutError, parse_layout
from orchestrator.predict.problem import CannotPredictError, CannotRunError
from orchestrator.predict.settings import integer, number, optional, positive, size, word

_FUSED_SINCE = (2, 14)


@dataclass
class Sections:
    """Settings by the framework's names, from a request or from an effective configuration."""

    model: dict[str, Any]
    optimizer: dict[str, Any] = field(default_factory=dict)
    ddp: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    trainer: str = "bridge"
    transformer_engine: str | None = None
    """Its version where it is known."""
    comm_overlap: bool = False
    """A recipe's CommOverlapConfig still decides over overlapped reduction (`Recipe.comm_overlap`)."""


def build_job(sections: Sections, world_size: int | None = None) -> Job:
    """The job of such settings.

    Raises:
        CannotPredictError: a size is missing, or of the wrong type.
    """
    model = sections.model
    layout = _layout(model, world_size or integer(sections.train, "world_size", 0))
    numerics = _numerics(sections, layout)
    shapes = _shapes(model, layout, numerics, sections.trainer)
    job = Job(
        shapes=shapes,
        layout=layout,
        numerics=numerics,
        batch=Batch(
            seq_length=positive(model, "seq_length", integer(sections.train, "seq_length", 0)),
            micro_batch=positive(sections.train, "micro_batch_size", 0),
            global_batch=positive(sections.train, "global_batch_size", 0),
        ),
        recompute=recompute_of(model),
        cuda_graphs=numerics.cuda and _has_graphs(model),
        offloading=_offloading(sections),
    )
    refuse_inconsistent(job)
    return job


def _offloading(sections: Sections) -> str | None:
    model = ("cpu_offloading", "fine_grained_activation_offloading")
    found = [f"model.{name}" for name in model if sections.model.get(name)]
    found += ["optimizer.optimizer_cpu_offload"] * bool(sections.optimizer.get("optimizer_cpu_offload"))
    return found[0] if found else None


def recompute_of(fields: Mapping[str, Any]) -> Recompute:
    """The four settings in force; a null list of modules is Megatron Core's `["core_attn"]`."""
    granularity = word(fields, "recompute_granularity")
    if granularity is None:
        return Recompute()
    if granularity == jobs.FULL:
        layers = integer(fields, "recompute_num_layers", -1)
        return Recompute(granularity, frozenset(), word(fields, "recompute_method"), None if layers == -1 else layers)
    modules = fields.get("recompute_modules")
    if modules is not None and not (
        isinstance(modules, (list, tuple)) and all(isinstance(one, str) for one in modules)
    ):
        raise CannotPredictError(f"recompute_modules={modules!r:.40} is no list of labels")
    return Recompute(granularity, frozenset(["core_attn"] if modules is None else modules))


def _has_graphs(model: Mapping[str, Any]) -> bool:
    implementation = model.get("cuda_graph_impl") or "none"
    return implementation != "none" or bool(model.get("enable_cuda_graph") or model.get("external_cuda_graph"))


def _layout(model: Mapping[str, Any], world_size: int) -> Layout:
    tp = positive(model, "tensor_model_parallel_size", 1)
    pp = positive(model, "pipeline_model_parallel_size", 1)
    cp = positive(model, "context_parallel_size", 1)
    ep = positive(model, "expert_model_parallel_size", 1)
    whole = positive(model, "expert_tensor_parallel_size", tp)
    stages = None
    asked = model.get("pipeline_model_parallel_layout")
    if isinstance(asked, (str, list, tuple)):
        try:
            stages = tuple(tuple(stage) for stage in parse_layout(asked))
        except LayoutError as error:
            raise CannotRunError(str(error)) from error
    least = math.lcm(tp * pp * cp, whole * ep * pp)
    world = world_size or least
    if world % (tp * pp * cp) or world % (whole * ep * pp):
        raise CannotRunError(
            f"{world} ranks do not divide by tp={tp} x pp={pp} x cp={cp}, and by etp={whole} x ep={ep} x pp={pp}; "
            f"the fewest that do are {least}"
        )
    return Layout(
        world=world,
        tp=tp,
        pp=pp,
        vpp=optional(model, "virtual_pipeline_model_parallel_size"),
        cp=cp,
        ep=ep,
        etp=whole,
        sequence_parallel=bool(model.get("sequence_parallel")) and tp > 1,
        first_stage_layers=optional(model, "num_layers_in_first_pipeline_stage"),
        last_stage_layers=optional(model, "num_layers_in_last_pipeline_stage"),
        count_embedding=bool(model.get("account_for_embedding_in_pipeline_split")),
        count_loss=bool(model.get("account_for_loss_in_pipeline_split")),
        stages=stages,
    )


def _numerics(sections: Sections, layout: Layout) -> Numerics:
    model, optimizer, ddp = sections.model, sections.optimizer, sections.ddp
    weight = size(model.get("params_dtype"), 2 if sections.trainer == "bridge" else 4)
    cuda = sections.trainer != "mcore_cpu"
    aware = bool(optimizer.get("use_precision_aware_optimizer")) and cuda
    main = size(optimizer.get("main_params_dtype"), 4)
    recipe = word(optimizer, "fp8_recipe")
    inside = aware and (main != 4 or recipe in (None, "delayed"))
    return Numerics(
        weight=weight,
        grad=4 if ddp.get("grad_reduce_in_fp32") else weight,
        distributed_optimizer=bool(ddp.get("use_distributed_optimizer", True)),
        precision_aware=aware,
        main_params_in_optimizer=inside,
        main_param=main,
        store_remainders=bool(optimizer.get("store_param_remainders", True)) and weight == 2,
        exp_avg=size(optimizer.get("exp_avg_dtype"), 4) if aware else 4,
        exp_avg_sq=size(optimizer.get("exp_avg_sq_dtype"), 4) if aware else 4,
        fp8=word(model, "fp8") or None,
        fp8_recipe=word(model, "fp8_recipe") if model.get("fp8") else None,
        fp8_params=bool(model.get("fp8") and model.get("fp8_param")),
        fp8_input_store=bool(model.get("activation_func_fp8_input_store")),
        wgrad_fused=bool(model.get("gradient_accumulation_fusion")) and cuda,
        transformer_engine=cuda and model.get("transformer_impl", "transformer_engine") != "local",
        cuda=cuda,
        moments_in_place=_in_place(optimizer, sections.transformer_engine),
        high_busbw_padding=bool(ddp.get("pad_buckets_for_high_nccl_busbw")),
        overlap_grad_reduce=layout.dp > 1 if sections.comm_overlap else bool(ddp.get("overlap_grad_reduce")),
    )


def _in_place(optimizer: Mapping[str, Any], engine: str | None) -> bool | None:
    """Whether FusedAdam updates its moments as they are: Transformer Engine 2.14 and newer do where both are bfloat16
    (TE optimizers/fused_adam.py, fuse_unscale, of 2026-02-24). None where the release is not known."""
    formats = {str(optimizer.get(name)).removeprefix("torch.") for name in ("exp_avg_dtype", "exp_avg_sq_dtype")}
    if not formats <= {"bf16", "bfloat16"}:
        return False
    if engine is None:
        return None
    numbers = [int(part) for part in re.findall(r"\d+", engine.partition("+")[0])[:2]]
    return tuple(numbers) >= _FUSED_SINCE if numbers else None


def _shapes(model: Mapping[str, Any], layout: Layout, numerics: Numerics, trainer: str) -> Shapes:
    hidden = positive(model, "hidden_size", 0)
    heads = positive(model, "num_attention_heads", 0)
    ffn = integer(model, "ffn_hidden_size", 4 * hidden)
    return Shapes(
        layers=layer_kinds(model),
        hidden=hidden,
        ffn=ffn,
        vocab=_vocabulary(model, layout, trainer),
        tied=_tied(model),
        gated=bool(model.get("gated_linear_unit")),
        fused_act=_fuses_activation(model),
        bias=bool(model.get("add_bias_linear", trainer != "bridge")),
        qkv_bias=bool(model.get("add_qkv_bias")),
        rms_norm=model.get("normalization") == "RMSNorm",
        attention=_attention(model, hidden, heads, numerics),
        experts=_experts(model, ffn),
        mamba=_mamba(model, hidden),
        delta=DeltaNet(
            key_dim=integer(model, "linear_key_head_dim", 128),
            value_dim=integer(model, "linear_value_head_dim", 128),
            key_heads=integer(model, "linear_num_key_heads", 16),
            value_heads=integer(model, "linear_num_value_heads", 32),
            conv=integer(model, "linear_conv_kernel_dim", 4),
        ),
        mtp_layers=integer(model, "mtp_num_layers", 0),
        fused_loss=str(model.get("cross_entropy_fusion_impl", "native"))
        if model.get("cross_entropy_loss_fusion")
        else None,
    )


def _fuses_activation(model: Mapping[str, Any]) -> bool:
    gated = bool(model.get("gated_linear_unit"))
    return bool(model.get("bias_activation_fusion" if gated else "use_fused_weighted_squared_relu"))


def _attention(model: Mapping[str, Any], hidden: int, heads: int, numerics: Numerics) -> Attention:
    latent = bool(model.get("multi_latent_attention"))
    # Multi-latent attention has sizes of its own.
    head_dim = integer(model, "v_head_dim", 128) if latent else integer(model, "kv_channels", hidden // heads)
    rope = str(model.get("position_embedding_type", "rope")) in ("rope", "yarn")
    fused = bool(model.get("apply_rope_fusion"))
    backend = str(model.get("attention_backend") or "auto")
    unfused = not numerics.transformer_engine or backend in (
        "unfused",
        "local",
        "AttnBackend.unfused",
        "AttnBackend.local",
    )
    if latent:
        rope_dim = integer(model, "qk_pos_emb_head_dim", 64)
    else:
        rope_dim = int(head_dim * (number(model.get("rotary_percent")) or 1.0)) if rope else 0
    q_lora = model.get("q_lora_rank", 512)
    q_lora = None if not q_lora else positive({"q_lora_rank": q_lora}, "q_lora_rank", 1)
    return Attention(
        heads=heads,
        groups=integer(model, "num_query_groups", heads),
        head_dim=head_dim,
        qk_norm=bool(model.get("qk_layernorm")),
        rope_dim=rope_dim,
        rope_fused=fused,
        yarn=latent and model.get("rope_type", "yarn") == "yarn",
        fused_core=not unfused,
        output_gate=bool(model.get("attention_output_gate")),
        q_lora=q_lora if latent else None,
        kv_lora=integer(model, "kv_lora_rank", 512) if latent else 0,
        qk_dim=integer(model, "qk_head_dim", 128) if latent else 0,
        v_dim=integer(model, "v_head_dim", 128) if latent else 0,
    )


def _experts(model: Mapping[str, Any], ffn: int) -> Experts:
    count = integer(model, "num_moe_experts", 0)
    if not count:
        return Experts()
    router = model.get("moe_router_dtype")
    balancing = model.get("moe_router_load_balancing_type", "aux_loss")
    coefficient = model.get("moe_aux_loss_coeff", 0.0)
    total = sum(map(number, coefficient)) if isinstance(coefficient, (list, tuple)) else number(coefficient)
    return Experts(
        count=count,
        topk=integer(model, "moe_router_topk", 2),
        ffn=integer(model, "moe_ffn_hidden_size", ffn),
        shared_ffn=integer(model, "moe_shared_expert_intermediate_size", 0),
        shared_gate=bool(model.get("moe_shared_expert_gate")),
        shared_overlap=bool(model.get("moe_shared_expert_overlap")),
        grouped=bool(model.get("moe_grouped_gemm")),
        dispatcher=str(model.get("moe_token_dispatcher_type", "allgather")),
        permute_fused=bool(model.get("moe_permute_fusion")),
        router_bytes={"fp32": 4, "fp64": 8}.get(str(router), size(model.get("params_dtype"), 2)),
        sigmoid=model.get("moe_router_score_function") == "sigmoid",
        expert_bias=bool(model.get("moe_router_enable_expert_bias")),
        aux_loss=total > 0 and balancing not in ("none", "sinkhorn"),
        random_logits=bool(model.get("moe_router_force_load_balancing")),
        latent=optional(model, "moe_latent_size"),
    )


def _mamba(model: Mapping[str, Any], hidden: int) -> Mamba:
    head_dim = positive(model, "mamba_head_dim", 64)
    return Mamba(
        state=integer(model, "mamba_state_dim", 128),
        head_dim=head_dim,
        groups=integer(model, "mamba_num_groups", 8),
        heads=integer(model, "mamba_num_heads", 2 * hidden // head_dim),
    )


def _vocabulary(model: Mapping[str, Any], layout: Layout, trainer: str) -> int:
    if model.get("padded_vocab_size"):
        return positive(model, "padded_vocab_size", 0)
    size = positive(model, "vocab_size", 0)
    if trainer == "bridge" and not model.get("should_pad_vocab"):
        return size
    multiple = integer(model, "make_vocab_size_divisible_by", 128) * layout.tp
    return math.ceil(size / multiple) * multiple


def _tied(model: Mapping[str, Any]) -> bool:
    shared = model.get("share_embeddings_and_output_weights")
    if shared is None:
        return model.get("untie_embeddings_and_output_weights") is False
    return bool(shared)
