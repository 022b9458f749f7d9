"""What each module label needs: of the model, of the number format, of overlap, and where it cannot act."""

from __future__ import annotations

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject

_CONFIG = "TransformerConfig.__post_init__"
_MOE = "guide, Compatibility and Validation: MoE restrictions"
_FP8 = "guide, Compatibility and Validation: FP8 restrictions"
_ATTENTION = "guide, Compatibility and Validation: Attention backend and context parallelism"
_LAYER = "TransformerLayer.__init__"


def _moe_act_without_grouped_gemm(subject: Subject) -> str | None:
    if "moe_act" not in subject.modules or subject["moe_grouped_gemm"]:
        return None
    return (
        "recompute_modules has moe_act, which acts on grouped experts only: set model.moe_grouped_gemm=true, or drop it"
    )


def _mla_without_mla(subject: Subject) -> str | None:
    if "mla_up_proj" not in subject.modules or subject["multi_latent_attention"]:
        return None
    return (
        "recompute_modules has mla_up_proj, which only multi-latent attention has: drop it (core_attn is the usual "
        "first choice here), or use a model with model.multi_latent_attention=true"
    )


def _shared_with_overlap(subject: Subject) -> str | None:
    if "shared_experts" not in subject.modules:
        return None
    if subject["moe_shared_expert_intermediate_size"] is None or not subject["moe_shared_expert_overlap"]:
        return None
    return (
        "recompute_modules has shared_experts, which cannot be replayed while their computation overlaps the dispatch: "
        "set model.moe_shared_expert_overlap=false, or drop it"
    )


def _delayed_scaling(subject: Subject) -> str | None:
    if not subject["fp8"] or subject["fp8_recipe"] != "delayed":
        return None
    named = [label for label in ("moe_act", "layernorm") if label in subject.modules]
    if not named:
        return None
    return (
        f"recompute_modules has {' and '.join(named)}, which FP8 with delayed scaling does not support: set "
        "precision.fp8_recipe to tensorwise, blockwise or mxfp8 (null is delayed), or drop it"
    )


def _fp8_needs_engine(subject: Subject) -> str | None:
    if not subject["fp8"] or subject["fp8_recipe"] == "delayed":
        return None
    named = [label for label in ("moe_act", "layernorm") if label in subject.modules]
    if not named:
        return None
    return f"{' and '.join(named)} with precision.fp8 needs Transformer Engine 2.6.0 or newer where the trial runs"


def _gdn_without_gdn(subject: Subject) -> str | None:
    if "gdn_norm_out" not in subject.modules or subject["experimental_attention_variant"] == "gated_delta_net":
        return None
    return (
        "recompute_modules has gdn_norm_out, which only gated delta net layers have: drop it, or set "
        "model.experimental_attention_variant=gated_delta_net"
    )


def _moe_with_overlap(subject: Subject) -> str | None:
    if "moe" not in subject.replayed or not subject["overlap_moe_expert_parallel_comm"]:
        return None
    return (
        "recompute_modules has moe, whose replay would repeat the routing and communication that "
        "model.overlap_moe_expert_parallel_comm=true overlaps: use moe_act or layernorm inside it, or set it to false"
    )


def _absorbed(subject: Subject) -> str | None:
    if "mla_up_proj" not in subject.modules or not (subject.set("fp8") or subject.set("fp4")):
        return None
    if subject["experimental_attention_variant"] != "dsa" and not subject["cache_mla_latents"]:
        return None
    return (
        "recompute_modules has mla_up_proj on an absorbed MLA path with FP8 or FP4, which has restrictions of its own: "
        "try it on the exact revision first, or use precision=bf16"
    )


def _mlp_without_dense(subject: Subject) -> str | None:
    if "mlp" not in subject.modules or subject.has_dense_layers:
        return None
    return (
        "recompute_modules has mlp, which acts on dense layers, and every layer here is MoE: use moe_act, "
        "shared_experts or moe instead"
    )


def _moe_labels_in_dense(subject: Subject) -> str | None:
    named = [label for label in ("moe", "moe_act", "shared_experts") if label in subject.replayed]
    if not named or subject.is_moe:
        return None
    return (
        f"recompute_modules has {' and '.join(named)}, which acts on MoE layers, and model.num_moe_experts is null: "
        "use mlp, or drop it"
    )


def _shared_without_shared(subject: Subject) -> str | None:
    if "shared_experts" not in subject.modules or not subject.is_moe:
        return None
    if subject["moe_shared_expert_intermediate_size"] is not None:
        return None
    return (
        "recompute_modules has shared_experts, and the model has none: drop it, or set "
        "model.moe_shared_expert_intermediate_size"
    )


def _core_attention_fused(subject: Subject) -> str | None:
    if "core_attn" not in subject.modules or subject.trainer != "bridge":
        return None
    if subject["transformer_impl"] != "transformer_engine" or subject["attention_backend"] in ("unfused", "local"):
        return None
    return (
        "recompute_modules has core_attn, and fused or flash attention already replays its internals: expect little "
        "memory for its time; compare with [], or look at model.attention_backend"
    )


def _layernorm_fused(subject: Subject) -> str | None:
    if "layernorm" not in subject.modules or subject.trainer != "bridge" or subject.is_moe:
        return None
    if subject["multi_latent_attention"] or subject["transformer_impl"] != "transformer_engine":
        return None
    return (
        "recompute_modules has layernorm, and Transformer Engine fuses both norms of a dense layer into the matrix "
        "that follows, so nothing is left to replay: drop it"
    )


def _nested(subject: Subject) -> str | None:
    inner = [label for label in ("shared_experts", "moe_act") if label in subject.modules]
    if "moe" not in subject.modules or not inner:
        return None
    return (
        f"recompute_modules has moe and, within it, {' and '.join(inner)}: the outer one already drops what the "
        "inner one saves, and nesting can raise the peak during replay; measure moe alone first"
    )


def _context_parallel(subject: Subject) -> str | None:
    if "core_attn" not in subject.modules or subject.positive("context_parallel_size") == 1:
        return None
    return (
        f"core_attn under parallelism.cp={subject['context_parallel_size']} replays attention's communication as "
        "well as its computation"
    )


def _hybrid_full(subject: Subject) -> str | None:
    if subject["recompute_granularity"] != "full":
        return None
    if not subject.set("is_hybrid_model") and not subject.set("hybrid_override_pattern"):
        return None
    return (
        "recompute_granularity=full is not read by the hybrid (Mamba) stack of this release: use selective with moe, "
        "layernorm or core_attn"
    )


RULES = (
    Rule("moe-act-grouped-gemm", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _moe_act_without_grouped_gemm),
    Rule("mla-up-proj-mla", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _mla_without_mla),
    Rule("shared-experts-overlap", Kind.INVALID, Judge.RECOMPUTE, _CONFIG, _shared_with_overlap),
    Rule("fp8-delayed-scaling", Kind.INVALID, Judge.CONFIG, _CONFIG, _delayed_scaling),
    Rule("fp8-recompute-engine", Kind.OPEN, Judge.RUN, _FP8, _fp8_needs_engine),
    Rule("gdn-norm-out-gdn", Kind.INVALID, Judge.RUN, "GatedDeltaNet", _gdn_without_gdn),
    Rule("moe-expert-overlap", Kind.RISKY, Judge.GUIDE, _MOE, _moe_with_overlap, before="0.17.0"),
    Rule("moe-expert-overlap", Kind.INVALID, Judge.CONFIG, _CONFIG, _moe_with_overlap, since="0.17.0"),
    Rule("mla-up-proj-absorbed", Kind.RISKY, Judge.GUIDE, _FP8, _absorbed),
    Rule("mlp-without-dense-layers", Kind.NO_EFFECT, Judge.GUIDE, _LAYER, _mlp_without_dense),
    Rule("moe-label-without-experts", Kind.NO_EFFECT, Judge.GUIDE, "MoELayer.__init__", _moe_labels_in_dense),
    Rule("shared-experts-absent", Kind.NO_EFFECT, Judge.GUIDE, "MoELayer.__init__", _shared_without_shared),
    Rule("core-attn-fused", Kind.NO_EFFECT, Judge.GUIDE, _ATTENTION, _core_attention_fused),
    Rule("layernorm-fused", Kind.NO_EFFECT, Judge.GUIDE, _LAYER, _layernorm_fused),
    Rule("nested-in-moe", Kind.RISKY, Judge.GUIDE, "guide, Selective Module Decision Table", _nested),
    Rule("core-attn-context-parallel", Kind.NOTE, Judge.GUIDE, _ATTENTION, _context_parallel),
    Rule("full-on-hybrid", Kind.NO_EFFECT, Judge.GUIDE, "MambaStack.forward", _hybrid_full, before="0.17.0"),
)
