"""What a configuration says of a model that decides which labels can act on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.rows import Row
from orchestrator.select.match import flatten

_FUSED = ("TEDotProductAttention", "FlashAttention", "flash", "fused")


@dataclass(frozen=True)
class Architecture:
    """Facts of a row's model and features; None where the configuration does not say."""

    mla: bool | None = None
    moe: bool | None = None
    grouped_gemm: bool | None = None
    dense_layers: int | None = None
    """Transformer layers whose MLP is dense."""
    shared_experts: bool | None = None
    fused_attention: str | None = None
    """The backend or class that rematerialises attention by itself; None where attention is not fused, or unknown."""
    graphs: str | None = None
    """`cuda_graph_impl` where graphs are captured."""
    graph_scope: tuple[str, ...] = ()
    expert_overlap: bool | None = None
    shared_expert_overlap: bool | None = None
    fp8_recipe: str | None = None
    pp: int | None = None
    offloading: bool = False


def architecture_of(row: Row) -> Architecture:
    """From the effective configuration, or the request where a row has none."""
    flat = flatten(row.effective if row.effective is not None else row.requested)
    fields = _by_name(flat)
    experts = fields.get("num_moe_experts")
    moe = experts not in (None, 0) if "num_moe_experts" in fields else _bool(fields.get("moe"))
    scope = fields.get("cuda_graph_scope") or fields.get("cuda_graph_modules") or []
    return Architecture(
        mla=_bool(fields.get("multi_latent_attention")),
        moe=moe,
        grouped_gemm=_bool(fields.get("moe_grouped_gemm")),
        dense_layers=_dense_layers(fields, moe),
        shared_experts=_shared_experts(fields),
        fused_attention=_fused_attention(row.effective or {}, fields),
        graphs=_graphs(fields),
        graph_scope=tuple(str(part) for part in (scope if isinstance(scope, list) else [scope])),
        expert_overlap=_bool(fields.get("overlap_moe_expert_parallel_comm")),
        shared_expert_overlap=_bool(fields.get("moe_shared_expert_overlap")),
        fp8_recipe=str(fields["fp8_recipe"]) if fields.get("fp8") and fields.get("fp8_recipe") else None,
        pp=_int(fields.get("pipeline_model_parallel_size", fields.get("pp"))),
        offloading=bool(fields.get("cpu_offloading")),
    )


def inactive_reason(label: str, model: Architecture) -> str | None:
    """Why a label cannot act on this model; None where it can, or where that is not known."""
    if label == "mlp" and model.dense_layers == 0:
        return "every layer's MLP is MoE, and mlp acts on dense ones only"
    if label in ("moe", "moe_act") and model.moe is False:
        return "the model has no experts"
    if label == "shared_experts" and model.shared_experts is False:
        return "the model has no shared experts"
    if label == "mla_up_proj" and model.mla is False:
        return "the model has no multi-latent attention"
    return None


def _by_name(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Values by a field's last name; where several parts have it, the shortest path is the model's own."""
    found: dict[str, Any] = {}
    for path in sorted(flat, key=lambda path: (-path.count("."), path)):
        found[path.rpartition(".")[2]] = flat[path]
    return found


def _dense_layers(fields: Mapping[str, Any], moe: bool | None) -> int | None:
    if "dense_layers" in fields:
        return _int(fields["dense_layers"])
    layers, frequency = _int(fields.get("num_layers")), fields.get("moe_layer_freq", 1)
    if layers is None or moe is None:
        return None
    if not moe:
        return layers
    if isinstance(frequency, list):
        return sum(1 for value in frequency if not value)
    step = _int(frequency)
    # TransformerConfig.moe_layer_freq: one MoE layer in every `step` layers, the first of each group.
    return None if not step else layers - len(range(0, layers, step))


def _shared_experts(fields: Mapping[str, Any]) -> bool | None:
    size = "moe_shared_expert_intermediate_size"
    return fields[size] not in (None, 0) if size in fields else None


def _fused_attention(effective: Mapping[str, Any], fields: Mapping[str, Any]) -> str | None:
    named = [str(fields.get("attention_backend") or "")]
    for layer in _layers(effective):
        named += [str(part) for part in layer.values()]
    return next((name for name in named for fused in _FUSED if fused in name and "unfused" not in name.lower()), None)


def _layers(effective: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    model = effective.get("model")
    for place in (effective, model if isinstance(model, Mapping) else {}):
        layers = place.get("layers")
        if isinstance(layers, list):
            return [layer for layer in layers if isinstance(layer, Mapping)]
    return []


def _graphs(fields: Mapping[str, Any]) -> str | None:
    impl = fields.get("cuda_graph_impl")
    if impl in (None, "none"):
        return "local" if fields.get("enable_cuda_graph") else None
    return str(impl)


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
