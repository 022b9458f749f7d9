"""The framework's fields that the rules read: type, default, and where a request spells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.schema import RECIPE, RECOMPUTE_KEYS
from orchestrator.plan.candidate import group


@dataclass(frozen=True)
class Field:
    """A field of `TransformerConfig` (Megatron Core 0.16.1) or of the training loop."""

    types: tuple[type, ...]
    default: Any = None
    spelling: str = ""
    """The setting that a user writes, where it is not `model.<name>`."""


_OPTIONAL_INT = Field((int, type(None)))
_FLAG = Field((bool,), False)
_OPTIONAL_FLAG = Field((bool, type(None)), False)
_LIST_OR_INT = (int, list)
_STAGES = (str, list, type(None))

FIELDS: Mapping[str, Field] = {
    "recompute_granularity": Field((str, type(None)), None, "recompute_granularity"),
    "recompute_modules": Field((list, type(None)), None, "recompute_modules"),
    "recompute_method": Field((str, type(None)), None, "recompute_method"),
    "recompute_num_layers": Field((int, type(None)), None, "recompute_num_layers"),
    "tensor_model_parallel_size": Field((int,), 1, "parallelism.tp"),
    "pipeline_model_parallel_size": Field((int,), 1, "parallelism.pp"),
    "virtual_pipeline_model_parallel_size": Field((int, type(None)), None, "parallelism.vpp"),
    "context_parallel_size": Field((int,), 1, "parallelism.cp"),
    "expert_model_parallel_size": Field((int,), 1, "parallelism.ep"),
    "expert_tensor_parallel_size": Field((int, type(None)), None, "parallelism.etp"),
    "sequence_parallel": Field((bool,), False, "parallelism.sequence_parallel"),
    "pipeline_model_parallel_layout": Field(_STAGES, None, "parallelism.layout"),
    "world_size": Field((int, type(None)), None, "parallelism.world_size"),
    "seq_length": Field((int, type(None)), None, "training.seq_length"),
    "micro_batch_size": Field((int, type(None)), None, "training.micro_batch_size"),
    "global_batch_size": Field((int, type(None)), None, "training.global_batch_size"),
    "train_iters": Field((int, type(None)), None, "training.train_iters"),
    "steady_window": Field((list, type(None)), None, "training.steady_window"),
    "bf16": Field((bool,), False, "precision.params_dtype"),
    "fp16": Field((bool,), False, "precision.params_dtype"),
    "fp8": Field((str, type(None)), None, "precision.fp8"),
    "fp8_recipe": Field((str, type(None)), "delayed", "precision.fp8_recipe"),
    "fp8_quantizer_factory": Field((str, type(None))),
    "fp4_quantizer_factory": Field((str, type(None))),
    "fp8_param": Field((bool,), False),
    "fp4": Field((str, type(None)), None),
    "fp4_recipe": Field((str, type(None)), "nvfp4"),
    "fp4_param": Field((bool,), False),
    "first_last_layers_bf16": Field((bool,), False),
    "num_layers_at_start_in_bf16": Field((int,), 1),
    "num_layers_at_end_in_bf16": Field((int,), 1),
    "num_layers": Field((int,), 0),
    "hidden_size": Field((int,), 0),
    "num_attention_heads": Field((int,), 0),
    "num_query_groups": _OPTIONAL_INT,
    "ffn_hidden_size": _OPTIONAL_INT,
    "multi_latent_attention": _FLAG,
    "cache_mla_latents": _FLAG,
    "apply_rope_fusion": _FLAG,
    "rotary_interleaved": _FLAG,
    "rope_type": Field((str,), "yarn"),
    "is_hybrid_model": _FLAG,
    "hybrid_override_pattern": Field((str, type(None))),
    "experimental_attention_variant": Field((str, type(None))),
    "linear_attention_freq": Field((int, list, type(None))),
    "linear_conv_kernel_dim": Field((int, type(None)), 4),
    "linear_key_head_dim": Field((int, type(None)), 128),
    "linear_value_head_dim": Field((int, type(None)), 128),
    "linear_num_key_heads": Field((int, type(None)), 16),
    "linear_num_value_heads": Field((int, type(None)), 32),
    "attention_backend": Field((str, type(None)), "auto"),
    "transformer_impl": Field((str,), "transformer_engine"),
    "attention_dropout": Field((float, int), 0.1),
    "hidden_dropout": Field((float, int), 0.1),
    "add_bias_linear": Field((bool,), True),
    "mtp_num_layers": _OPTIONAL_INT,
    "num_layers_in_first_pipeline_stage": _OPTIONAL_INT,
    "num_layers_in_last_pipeline_stage": _OPTIONAL_INT,
    "account_for_embedding_in_pipeline_split": _FLAG,
    "account_for_loss_in_pipeline_split": _FLAG,
    "num_moe_experts": _OPTIONAL_INT,
    "moe_ffn_hidden_size": _OPTIONAL_INT,
    "moe_layer_freq": Field(_LIST_OR_INT, 1),
    "moe_grouped_gemm": _FLAG,
    "moe_shared_expert_intermediate_size": _OPTIONAL_INT,
    "moe_shared_expert_overlap": _FLAG,
    "moe_token_dispatcher_type": Field((str,), "allgather"),
    "moe_enable_deepep": _FLAG,
    "moe_flex_dispatcher_backend": Field((str, type(None)), "deepep"),
    "moe_aux_loss_coeff": Field((float, int, list), 0.0),
    "moe_router_topk": Field((int,), 2),
    "moe_router_pre_softmax": _FLAG,
    "moe_router_score_function": Field((str,), "softmax"),
    "moe_router_load_balancing_type": Field((str, list), "aux_loss"),
    "moe_router_enable_expert_bias": _FLAG,
    "moe_router_group_topk": _OPTIONAL_INT,
    "moe_router_num_groups": _OPTIONAL_INT,
    "moe_router_padding_for_fp8": _OPTIONAL_FLAG,
    "moe_router_padding_for_quantization": _OPTIONAL_FLAG,
    "moe_expert_capacity_factor": Field((float, int, type(None))),
    "moe_pad_expert_input_to_capacity": _FLAG,
    "moe_input_jitter_eps": Field((float, int, type(None))),
    "moe_layer_recompute": _FLAG,
    "overlap_moe_expert_parallel_comm": _FLAG,
    "delay_wgrad_compute": _FLAG,
    "ep_overlap_early_attn_memory_release": _FLAG,
    "moe_use_legacy_grouped_gemm": _FLAG,
    "distribute_saved_activations": _OPTIONAL_FLAG,
    "cpu_offloading": _FLAG,
    "cpu_offloading_num_layers": Field((int,), 0),
    "fine_grained_activation_offloading": _FLAG,
    "offload_modules": Field((list, type(None)), []),
    "enable_cuda_graph": _FLAG,
    "external_cuda_graph": _FLAG,
    "cuda_graph_impl": Field((str,), "none"),
    "cuda_graph_scope": Field((str, list, type(None)), "full"),
    "cp_comm_type": Field((str, list, type(None))),
}

_TRAINING = ("seq_length", "micro_batch_size", "global_batch_size", "train_iters", "steady_window")
_PARALLELISM = {
    "tp": "tensor_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "layout": "pipeline_model_parallel_layout",
}


def spelling(name: str) -> str:
    """How a user writes a framework field: `parallelism.tp` for `tensor_model_parallel_size`."""
    field = FIELDS.get(name)
    return field.spelling if field and field.spelling else f"model.{name}"


def framework_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a request gives to framework fields, by the framework's names; what a recipe decides is absent."""
    given: dict[str, Any] = dict(group(request, "model"))
    given.pop("name", None)
    for key, value in group(request, "parallelism").items():
        given[_PARALLELISM.get(key, key)] = value
    given.update(_from_precision(group(request, "precision")))
    training = group(request, "training")
    given.update({key: training[key] for key in _TRAINING if key in training})
    given.update({key: request[key] for key in RECOMPUTE_KEYS if key in request})
    given.update(_from_overrides(group(request, "trainer").get("overrides")))
    return {key: value for key, value in given.items() if not _is_recipe(value)}


def _from_precision(precision: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(precision)
    dtype = given.get("params_dtype", RECIPE)
    if not _is_recipe(dtype):
        given |= {"bf16": dtype == "bf16", "fp16": dtype == "fp16"}
    if given.get("recipe_name") is not None:
        # A mixed-precision recipe of Bridge sets these itself (bridge training/mixed_precision.py).
        for key in ("bf16", "fp16", "fp8", "fp8_recipe"):
            given.pop(key, None)
    elif given.get("fp8_recipe", RECIPE) is None:
        given.pop("fp8_recipe")
    return given


def _from_overrides(overrides: Any) -> dict[str, Any]:
    """Model fields among dotted paths into Bridge's ConfigContainer."""
    if not isinstance(overrides, Mapping):
        return {}
    given = {}
    for path, value in overrides.items():
        if isinstance(path, str) and path.startswith("model.") and path[6:] in FIELDS:
            given[path[6:]] = value
    nested = overrides.get("model")
    if isinstance(nested, Mapping):
        given.update({key: value for key, value in nested.items() if key in FIELDS})
    return given


def _is_recipe(value: Any) -> bool:
    return isinstance(value, str) and value == RECIPE
