"""Moving activations to the host instead of replaying them, and what that cannot go with."""

from __future__ import annotations

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject

_CONFIG = "TransformerConfig.__post_init__"
_OFFLOADED = ("attn_norm", "attn_proj", "core_attn", "expert_fc1", "mlp_norm", "moe_act", "qkv_linear")


def _layers(subject: Subject) -> str | None:
    if not subject["cpu_offloading"]:
        return None
    offloaded, layers = subject.integer("cpu_offloading_num_layers"), subject.integer("num_layers")
    if 0 <= offloaded < layers:
        return None
    return (
        f"model.cpu_offloading_num_layers={offloaded} must be from 0 to {layers - 1}, one less than "
        f"model.num_layers={layers}"
    )


def _pipeline(subject: Subject) -> str | None:
    if not subject["cpu_offloading"] or subject.positive("pipeline_model_parallel_size") == 1:
        return None
    return (
        "model.cpu_offloading=true works with one pipeline stage only, and "
        f"parallelism.pp={subject['pipeline_model_parallel_size']}: set parallelism.pp=1, or "
        "model.cpu_offloading=false"
    )


def _recompute(subject: Subject) -> str | None:
    if not subject["cpu_offloading"] or subject["recompute_granularity"] is None:
        return None
    return (
        "model.cpu_offloading=true cannot go with recomputation, not even of nothing ([]): set recompute=off, or "
        "model.cpu_offloading=false"
    )


def _graphs(subject: Subject) -> str | None:
    if not subject["cpu_offloading"] or subject.graph_implementation == "none":
        return None
    return (
        "model.cpu_offloading=true cannot go with CUDA graphs: set model.cuda_graph_impl=none, or offloading to false"
    )


def _fine_grained_with_whole(subject: Subject) -> str | None:
    if not (subject["fine_grained_activation_offloading"] and subject["cpu_offloading"]):
        return None
    return (
        "model.fine_grained_activation_offloading and model.cpu_offloading exclude each other: set one of them to false"
    )


def _fine_grained_modules(subject: Subject) -> str | None:
    if not subject["fine_grained_activation_offloading"]:
        return None
    modules = subject["offload_modules"] or []
    allowed = ", ".join(_OFFLOADED)
    if not modules:
        return f"model.fine_grained_activation_offloading=true needs model.offload_modules, a list of {allowed}"
    unknown = [str(module) for module in modules if module not in _OFFLOADED]
    if unknown:
        return f"model.offload_modules has {unknown[0]!r}; it may have {allowed}"
    if "attn_proj" in modules and "core_attn" not in modules:
        return "model.offload_modules has attn_proj without core_attn, whose output it is: add core_attn, or drop it"
    return None


def _offloaded_and_replayed(subject: Subject) -> str | None:
    if not subject["fine_grained_activation_offloading"]:
        return None
    both = [module for module in subject["offload_modules"] or [] if module in subject.modules]
    if not both:
        return None
    return f"{both[0]} is in recompute_modules and in model.offload_modules: what is replayed is not kept to be moved"


RULES = (
    Rule("cpu-offloading-layers", Kind.INVALID, Judge.CONFIG, _CONFIG, _layers),
    Rule("cpu-offloading-pipeline", Kind.INVALID, Judge.CONFIG, _CONFIG, _pipeline),
    Rule("cpu-offloading-recompute", Kind.INVALID, Judge.CONFIG, _CONFIG, _recompute),
    Rule("cpu-offloading-graphs", Kind.INVALID, Judge.CONFIG, _CONFIG, _graphs),
    Rule("offloading-both", Kind.INVALID, Judge.CONFIG, _CONFIG, _fine_grained_with_whole, since="0.16.0"),
    Rule("offload-modules", Kind.INVALID, Judge.CONFIG, _CONFIG, _fine_grained_modules, since="0.16.0"),
    Rule("offloaded-and-replayed", Kind.RISKY, Judge.GUIDE, "guide, Quick Decision Guide", _offloaded_and_replayed),
)
