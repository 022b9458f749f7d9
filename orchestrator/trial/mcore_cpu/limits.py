"""What this trainer cannot do, each limit with its reason, and the divisions that Megatron checks when it starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.trial.mcore_cpu.request import RejectedError, Request
from orchestrator.trial.mcore_cpu.sizes import is_count, size_problems
from orchestrator.vocabulary import Stage


@dataclass(frozen=True)
class Limit:
    """One setting of `model` that only CUDA can do: `allowed` are the values that it may have here."""

    setting: str
    allowed: tuple[Any, ...]
    reason: str


_FUSED = "a fused CUDA kernel"
_TE = "Transformer Engine, which has no CPU build"

LIMITS = (
    Limit("enable_cuda_graph", (False, None), "CUDA graphs"),
    Limit("cuda_graph_impl", ("none", None), "CUDA graphs"),
    Limit("is_hybrid_model", (False, None), "the Mamba kernels, which are CUDA only"),
    Limit("hybrid_override_pattern", (None,), "the Mamba kernels, which are CUDA only"),
    Limit("mamba_num_heads", (None,), "the Mamba kernels, which are CUDA only"),
    Limit("experimental_attention_variant", (None,), "the kernels of that attention, which are CUDA only"),
    Limit("attention_backend", ("auto", "unfused", "local", None), f"{_TE}: here attention is unfused"),
    Limit("transformer_impl", ("local", None), f"{_TE}: here layers are Megatron Core's own"),
    Limit("apply_rope_fusion", (False, None), _FUSED),
    Limit("masked_softmax_fusion", (False, None), _FUSED),
    Limit("gradient_accumulation_fusion", (False, None), _FUSED),
    Limit("persist_layer_norm", (False, None), _FUSED),
    Limit("moe_permute_fusion", (False, None), _TE),
    Limit("moe_router_fusion", (False, None), _TE),
    Limit("moe_use_legacy_grouped_gemm", (False, None), "the grouped_gemm library, which is CUDA only"),
    Limit("moe_enable_deepep", (False, None), "DeepEP, which is CUDA only"),
    Limit("moe_token_dispatcher_type", ("alltoall", "allgather", None), "DeepEP or HybridEP, which are CUDA only"),
    Limit("moe_shared_expert_overlap", (False, None), "a second CUDA stream"),
    Limit("overlap_moe_expert_parallel_comm", (False, None), "a second CUDA stream"),
    Limit("delay_wgrad_compute", (False, None), _TE),
    Limit("moe_latent_size", (None,), _TE),
    Limit("layernorm_zero_centered_gamma", (False, None), _TE),
    Limit("cpu_offloading", (False, None), _TE),
    Limit("fine_grained_activation_offloading", (False, None), "a second CUDA stream"),
    Limit("use_te_activation_func", (False, None), _TE),
    Limit("fp8", (None,), _TE),
    Limit("fp4", (None,), _TE),
)


def check_limits(request: Request) -> None:
    """Refuse what cannot work here.

    Raises:
        RejectedError: the first problem found, with what would work.
    """
    for problem in _problems(request):
        raise RejectedError(problem)


def check_modules(modules: Sequence[str] | None, allowed: Sequence[str], version: str) -> None:
    """Refuse labels that the installed Megatron Core does not know.

    Raises:
        RejectedError: with the nearest label and the allowed list.
    """
    for label in modules or ():
        if label not in allowed:
            near = difflib.get_close_matches(str(label), allowed, n=1, cutoff=0.4)
            raise RejectedError(
                f"recompute_modules: {label!r} is not a label of Megatron Core {version}"
                + (f", did you mean {near[0]}?" if near else ".")
                + f" Allowed are {', '.join(sorted(allowed))}."
            )


def _problems(request: Request) -> Iterator[str]:
    yield from _device_problems(request)
    yield from size_problems(request)
    yield from _layout_problems(request)
    yield from _training_problems(request)
    yield from _recompute_problems(request)
    yield from _fault_problems(request)


def _device_problems(request: Request) -> Iterator[str]:
    for limit in LIMITS:
        if limit.setting in request.transformer and request.transformer[limit.setting] not in limit.allowed:
            yield (
                f"model.{limit.setting}={request.transformer[limit.setting]} needs {limit.reason}; with "
                f"trainer=mcore_cpu use {_choice(limit.allowed)}, or trainer=bridge"
            )
    if request.params_dtype not in ("fp32", "bf16"):
        yield f"precision.params_dtype={request.params_dtype} is not possible on CPU: use fp32 or bf16"
    precision = request.precision
    for name in ("fp8", "fp8_recipe", "recipe_name"):
        if precision.get(name) is not None:
            yield f"precision.{name}={precision[name]} needs {_TE}: use null, or trainer=bridge"
    if precision.get("use_precision_aware_optimizer"):
        yield f"precision.use_precision_aware_optimizer=true needs {_TE}: use false, or trainer=bridge"
    for name in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        if precision.get(name, "fp32") != "fp32":
            yield (
                f"precision.{name}={precision[name]} needs the precision-aware optimizer of Transformer Engine: "
                "use fp32, or trainer=bridge"
            )


def _layout_problems(request: Request) -> Iterator[str]:
    layout, world = request.parallelism, request.world_size
    for name in ("tp", "pp", "vpp", "cp", "ep", "etp"):
        value = getattr(layout, name)
        if value is not None and not is_count(value):
            yield f"parallelism.{name}={value} must be a whole number above zero"
    if layout.cp > 1:
        yield f"parallelism.cp={layout.cp} needs the attention of {_TE}: use cp=1, or trainer=bridge"
    model = layout.tp * layout.pp * layout.cp
    if world % model:
        yield f"parallelism.world_size={world} is not a multiple of tp*pp*cp={model}"
    experts = layout.expert_tp * layout.ep * layout.pp
    if world % experts:
        yield f"parallelism.world_size={world} is not a multiple of etp*ep*pp={experts}"
    num_experts = request.transformer.get("num_moe_experts")
    if num_experts is None and layout.etp not in (None, 1, layout.tp):
        yield f"parallelism.etp={layout.etp} needs experts: set model.num_moe_experts, or leave etp null"
    if num_experts is not None and layout.tp > 1 and not layout.sequence_parallel:
        yield (
            f"parallelism.tp={layout.tp} with experts needs sequence parallelism in training "
            "(MoELayer.forward refuses it): set parallelism.sequence_parallel=true"
        )
    yield from _division_problems(request)
    yield from _pipeline_problems(request)


_DIVISIONS = (
    ("ffn_hidden_size", "tp"),
    ("num_attention_heads", "tp"),
    ("moe_shared_expert_intermediate_size", "tp"),
    ("num_moe_experts", "ep"),
    ("moe_ffn_hidden_size", "etp"),
)
"""Settings of `model` that are cut into equal parts when the model is built (megatron.core.utils.divide)."""


def _division_problems(request: Request) -> Iterator[str]:
    layout, transformer = request.parallelism, request.transformer
    parts = {"tp": layout.tp, "ep": layout.ep, "etp": layout.expert_tp}
    for setting, axis in _DIVISIONS:
        value = transformer.get(setting)
        if isinstance(value, int) and value % parts[axis]:
            yield f"model.{setting}={value} does not divide by parallelism.{axis}={parts[axis]}"
    latent = [transformer.get(name) for name in ("kv_lora_rank", "qk_pos_emb_head_dim")]
    width = sum(value for value in latent if isinstance(value, int))
    if request.multi_latent_attention and width % layout.tp:
        yield f"model.kv_lora_rank + model.qk_pos_emb_head_dim = {width} does not divide by parallelism.tp={layout.tp}"
    frequency = transformer.get("moe_layer_freq")
    if isinstance(frequency, list) and len(frequency) != transformer.get("num_layers"):
        yield (
            f"model.moe_layer_freq has {len(frequency)} entries, one for each of model.num_layers="
            f"{transformer.get('num_layers')} layers is needed"
        )


def _pipeline_problems(request: Request) -> Iterator[str]:
    layout, layers = request.parallelism, request.transformer.get("num_layers")
    if layout.vpp == 1:
        yield "parallelism.vpp=1 interleaves nothing: use null, or 2 or more"
    if layout.vpp is not None and layout.pp < 2:
        yield f"parallelism.vpp={layout.vpp} needs a pipeline: set parallelism.pp to 2 or more, or vpp to null"
    if layout.layout is not None or not isinstance(layers, int):
        return
    first, last = (request.transformer.get(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last"))
    if first is None and last is None and layers % (layout.pp * (layout.vpp or 1)):
        yield (
            f"model.num_layers={layers} does not divide into pp*vpp={layout.pp * (layout.vpp or 1)} equal parts: "
            "change model.num_layers, parallelism.pp or parallelism.vpp, or give parallelism.layout"
        )


def _training_problems(request: Request) -> Iterator[str]:
    training, layout = request.training, request.parallelism
    for name in ("seq_length", "micro_batch_size", "global_batch_size", "train_iters"):
        value = getattr(training, name)
        if not is_count(value):
            yield f"training.{name}={value} must be a whole number above zero"
    if not isinstance(training.resident_tokens, int) or training.resident_tokens < 0:
        yield f"training.resident_tokens={training.resident_tokens} must be a whole number, 0 for none"
    one_pass = training.micro_batch_size * request.data_parallel
    if training.global_batch_size % one_pass:
        yield (
            f"training.global_batch_size={training.global_batch_size} is not a multiple of micro_batch_size times "
            f"the data-parallel size ({training.micro_batch_size} x {request.data_parallel} = {one_pass})"
        )
    if layout.vpp is not None and request.num_microbatches % layout.pp:
        yield (
            f"with parallelism.vpp={layout.vpp} the number of microbatches ({request.num_microbatches}) must be a "
            f"multiple of pp={layout.pp}: change training.global_batch_size or training.micro_batch_size"
        )
    if layout.sequence_parallel and training.seq_length % layout.tp:
        yield f"training.seq_length={training.seq_length} is not a multiple of tp={layout.tp}"
    if request.model.get("vocab_size") is None:
        yield "model.vocab_size is missing"
    embedding = request.model.get("position_embedding_type", "rope")
    if embedding not in ("rope", "learned_absolute", "none"):
        yield f"model.position_embedding_type={embedding} is not supported here: use rope, learned_absolute or none"


def _recompute_problems(request: Request) -> Iterator[str]:
    recompute = request.recompute
    if recompute.granularity not in (None, "selective", "full"):
        yield f"recompute_granularity={recompute.granularity} is none of selective, full and null"
    if recompute.num_layers is not None and not is_count(recompute.num_layers):
        yield f"recompute_num_layers={recompute.num_layers} must be a whole number above zero, or null"
    uniform = recompute.granularity == "full" and recompute.method == "uniform"
    if uniform and request.transformer.get("mtp_num_layers") and recompute.num_layers != 1:
        yield (
            f"recompute_num_layers={recompute.num_layers}: full uniform recompute of multi-token prediction "
            "needs recompute_num_layers=1 (MultiTokenPredictionLayer)"
        )
    if uniform:
        yield from _uniform_problems(request)
    options = request.options
    if options.overlap_param_gather and not (options.use_distributed_optimizer and options.overlap_grad_reduce):
        yield (
            "trainer.overlap_param_gather=true needs trainer.use_distributed_optimizer=true and "
            "trainer.overlap_grad_reduce=true"
        )


def _uniform_problems(request: Request) -> Iterator[str]:
    """Groups of layers must come out even on every pipeline stage (TransformerBlock._checkpointed_forward)."""
    group, layout, transformer = request.recompute.num_layers, request.parallelism, request.transformer
    ends = [transformer.get(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last")]
    layers = transformer.get("num_layers")
    if layout.layout is not None or not is_count(layers) or group is None:
        return
    given = [end for end in ends if end is not None]
    middle = (layers - sum(given)) // max(1, layout.pp - len(given))
    for held in (*given, middle):
        in_chunk = held // (layout.vpp or 1)
        if in_chunk % group:
            yield (
                f"recompute_num_layers={group}: full uniform recompute replays that many layers together, and a "
                f"pipeline stage has {in_chunk}: use a number that divides {in_chunk}"
            )


FAULT_KINDS = ("oom", "sleep", "not_finite", "kill", "exit", "raise", "segfault")
_GRADIENT_STAGES = ("forward", "backward", "replay", "grad_sync", "optimizer_init", "optimizer_step")


def _fault_problems(request: Request) -> Iterator[str]:
    fault = request.options.fault
    if fault is None:
        return
    if fault.kind not in FAULT_KINDS:
        yield f"trainer.fault.kind={fault.kind} is none of {', '.join(FAULT_KINDS)}"
    if fault.stage not in [stage.value for stage in Stage]:
        yield f"trainer.fault.stage={fault.stage} is not a stage"
    if fault.kind == "not_finite" and fault.stage not in _GRADIENT_STAGES:
        yield f"trainer.fault: a gradient can only become NaN in {', '.join(_GRADIENT_STAGES)}, not in {fault.stage}"
    for name, lowest in (("rank", 0), ("iteration", 0), ("entry", 1), ("allocation", 1)):
        value = getattr(fault, name)
        if value is not None and (not isinstance(value, int) or value < lowest):
            yield f"trainer.fault.{name}={value} must be a whole number from {lowest} on"
    seconds: Any = fault.seconds
    if not isinstance(seconds, (int, float)):
        yield f"trainer.fault.seconds={seconds} is no number of seconds"
    if fault.rank >= request.world_size:
        yield f"trainer.fault.rank={fault.rank} is not one of the {request.world_size} ranks"


def _choice(values: tuple[Any, ...]) -> str:
    words = ["null" if value is None else str(value).lower() for value in values]
    return " or ".join(words[:2]) if len(words) < 3 else ", ".join(words)
