"""Expert-parallel communication overlapped with computation, and what it cannot go with."""

from __future__ import annotations

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject

_CONFIG = "TransformerConfig.__post_init__; Bridge CommOverlapConfig"
_OVERLAP = "model.overlap_moe_expert_parallel_comm=true"


def _recompute(subject: Subject) -> str | None:
    if not subject["overlap_moe_expert_parallel_comm"]:
        return None
    if subject.granularity == "full":
        return f"{_OVERLAP} cannot go with recompute_granularity=full: use selective, or set it to false"
    for name in ("recompute_method", "recompute_num_layers"):
        if subject[name] is not None:
            return f"{_OVERLAP} needs {name}=null, and it is {subject[name]}"
    return None


def _experts(subject: Subject) -> str | None:
    if not subject["overlap_moe_expert_parallel_comm"]:
        return None
    ep, dispatcher = subject.integer("expert_model_parallel_size"), subject["moe_token_dispatcher_type"]
    if ep <= 1:
        return f"{_OVERLAP} needs parallelism.ep of 2 or more, and it is {ep}"
    if dispatcher not in ("alltoall", "flex"):
        return f"{_OVERLAP} needs model.moe_token_dispatcher_type=alltoall or flex, not {dispatcher}"
    if subject["moe_shared_expert_overlap"]:
        return f"{_OVERLAP} cannot go with model.moe_shared_expert_overlap=true: set one of them to false"
    return None


def _precision(subject: Subject) -> str | None:
    if not subject["overlap_moe_expert_parallel_comm"] or subject["bf16"] or subject["fp16"]:
        return None
    return f"{_OVERLAP} needs precision.params_dtype=bf16 or fp16"


def _stages(subject: Subject) -> str | None:
    if not subject["overlap_moe_expert_parallel_comm"]:
        return None
    pp = subject.integer("pipeline_model_parallel_size")
    # A pipeline layout of several virtual stages sets vpp before the framework looks.
    if pp > 1 and subject["virtual_pipeline_model_parallel_size"] is None and not subject.layout_is_virtual:
        return f"{_OVERLAP} with parallelism.pp={pp} needs an interleaved schedule: set parallelism.vpp"
    return None


def _mtp(subject: Subject) -> str | None:
    if not subject["overlap_moe_expert_parallel_comm"]:
        return None
    layers = subject["mtp_num_layers"]
    if layers is None:
        return None
    if layers != 1:
        return f"{_OVERLAP} works with one MTP layer at most: set model.mtp_num_layers to 1 or null, not {layers}"
    if subject.revision.at_least("0.16.0") and subject.integer("pipeline_model_parallel_size") <= 1:
        return f"{_OVERLAP} with an MTP layer needs parallelism.pp of 2 or more"
    return None


def _graphs(subject: Subject) -> str | None:
    if not subject["overlap_moe_expert_parallel_comm"] or subject.graph_implementation == "none":
        return None
    if subject.graph_implementation != "transformer_engine":
        return f"{_OVERLAP} works with model.cuda_graph_impl=transformer_engine or none only"
    inner = [scope for scope in ("moe", "mlp") if scope in subject.graph_scopes]
    return (
        f"{_OVERLAP} cannot go with CUDA-graph scope {inner[0]}: drop it from model.cuda_graph_scope" if inner else None
    )


def _delayed(subject: Subject) -> str | None:
    if not subject["delay_wgrad_compute"]:
        return None
    if not subject["overlap_moe_expert_parallel_comm"]:
        return f"model.delay_wgrad_compute=true needs {_OVERLAP}"
    if subject["moe_use_legacy_grouped_gemm"]:
        return "model.delay_wgrad_compute=true does not work with model.moe_use_legacy_grouped_gemm=true"
    return None


def _delayed_engine(subject: Subject) -> str | None:
    if not subject["delay_wgrad_compute"] or subject.graph_implementation != "transformer_engine":
        return None
    return "model.delay_wgrad_compute with CUDA graphs needs Transformer Engine 2.10.0 or newer where the trial runs"


def _early_release(subject: Subject) -> str | None:
    if not subject["ep_overlap_early_attn_memory_release"] or subject["overlap_moe_expert_parallel_comm"]:
        return None
    return f"model.ep_overlap_early_attn_memory_release=true needs {_OVERLAP}"


RULES = (
    Rule("expert-overlap-recompute", Kind.INVALID, Judge.CONFIG, _CONFIG, _recompute),
    Rule("expert-overlap-experts", Kind.INVALID, Judge.CONFIG, _CONFIG, _experts),
    Rule("expert-overlap-precision", Kind.INVALID, Judge.CONFIG, _CONFIG, _precision),
    Rule("expert-overlap-stages", Kind.INVALID, Judge.CONFIG, _CONFIG, _stages),
    Rule("expert-overlap-mtp", Kind.INVALID, Judge.CONFIG, _CONFIG, _mtp),
    Rule("expert-overlap-graphs", Kind.INVALID, Judge.CONFIG, _CONFIG, _graphs, since="0.16.0"),
    Rule("delayed-weight-gradient", Kind.INVALID, Judge.CONFIG, _CONFIG, _delayed),
    Rule("delayed-weight-gradient-engine", Kind.OPEN, Judge.RUN, _CONFIG, _delayed_engine, since="0.16.0"),
    Rule("early-attention-release", Kind.INVALID, Judge.CONFIG, _CONFIG, _early_release, since="0.16.0"),
)
