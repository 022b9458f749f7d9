"""CUDA graphs: which scopes exist, which go together, and what may be replayed inside or around them."""

from __future__ import annotations

import difflib

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule
from orchestrator.plan.subject import Subject

_CONFIG = "TransformerConfig.__post_init__"
_GUIDE = "guide, Compatibility and Validation: CUDA graphs"
_SCOPES = ("full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_INSIDE = {
    "attn": ("core_attn", "mla_up_proj"),
    "mlp": ("mlp",),
    "moe": ("moe", "moe_act", "shared_experts"),
}


def _switches(subject: Subject) -> str | None:
    switches = [name for name in ("enable_cuda_graph", "external_cuda_graph") if subject[name]]
    if not switches:
        return None
    if subject["cuda_graph_impl"] != "none":
        return (
            f"model.{switches[0]}=true is the old spelling of model.cuda_graph_impl, which is "
            f"{subject['cuda_graph_impl']}: set one of them only"
        )
    if len(switches) == 2:
        return "model.enable_cuda_graph and model.external_cuda_graph exclude each other: use model.cuda_graph_impl"
    return None


def _implementation(subject: Subject) -> str | None:
    asked = subject["cuda_graph_impl"]
    if asked in ("none", "local", "transformer_engine"):
        return None
    if asked == "full_iteration":
        return (
            f"model.cuda_graph_impl=full_iteration is of newer releases: in {subject.revision.title} write "
            "model.cuda_graph_impl=local with model.cuda_graph_scope=full_iteration"
        )
    return f"model.cuda_graph_impl={asked!r} must be none, local or transformer_engine{_nearest(asked)}"


def _unknown_scope(subject: Subject) -> str | None:
    scopes = subject.graph_scopes
    if "full" in scopes:
        return "model.cuda_graph_scope=full means the whole layer, so it stands alone: drop it, or the others"
    unknown = [scope for scope in scopes if scope not in _SCOPES]
    if not unknown:
        return None
    return f"model.cuda_graph_scope has {unknown[0]!r}{_nearest(unknown[0])}; it may have full or {', '.join(_SCOPES)}"


def _scopes_together(subject: Subject) -> str | None:
    implementation, scopes = subject.graph_implementation, _paired(subject)
    if implementation == "none":
        return None
    if implementation == "transformer_engine" and "full_iteration" in scopes:
        return "model.cuda_graph_scope=full_iteration needs model.cuda_graph_impl=local"
    if "moe" in scopes and "moe_router" in scopes:
        return "model.cuda_graph_scope has both moe and moe_router (moe_preprocess brings it): drop one"
    if "moe_preprocess" in scopes and "moe_router" not in scopes:
        return "model.cuda_graph_scope has moe_preprocess, which needs moe_router beside it: add it"
    return None


def _scopes_of_experts(subject: Subject) -> str | None:
    scopes = _paired(subject)
    if subject.graph_implementation == "none" or not scopes:
        return None
    experts = subject["num_moe_experts"]
    if experts is None or experts <= 1:
        named = [scope for scope in ("moe", "moe_router") if scope in scopes]
        return f"model.cuda_graph_scope has {named[0]}, and the model has no experts: drop it" if named else None
    frequency = subject["moe_layer_freq"]
    if "mlp" in scopes and (frequency == 1 or (isinstance(frequency, list) and 0 not in frequency)):
        return "model.cuda_graph_scope has mlp, and no layer is dense: drop it"
    factor = subject["moe_expert_capacity_factor"]
    capacity = factor is not None and factor >= 0
    if capacity and subject["moe_pad_expert_input_to_capacity"]:
        return None
    if "moe" in scopes:
        return (
            "model.cuda_graph_scope has moe, which needs expert inputs of one size: set "
            "model.moe_pad_expert_input_to_capacity=true with model.moe_expert_capacity_factor, or use moe_router"
        )
    copies = capacity or subject["moe_router_padding_for_fp8"]
    if "moe_preprocess" in scopes and subject["moe_token_dispatcher_type"] == "alltoall" and copies:
        return (
            "model.cuda_graph_scope has moe_preprocess, which cannot be captured while the all-to-all dispatcher "
            "copies counts to the host (a capacity factor, or padding for FP8): drop it"
        )
    return None


def _full_recompute(subject: Subject) -> str | None:
    if subject.graph_implementation == "none" or subject.granularity != "full":
        return None
    if subject.graph_scopes == ["full_iteration"]:
        return None
    return (
        "recompute_granularity=full with CUDA graphs needs the whole iteration in one graph: set "
        "model.cuda_graph_impl=local and model.cuda_graph_scope=full_iteration, or model.cuda_graph_impl=none"
    )


def _full_recompute_newer(subject: Subject) -> str | None:
    if subject.granularity != "full" or subject.graph_implementation in ("none", "full_iteration"):
        return None
    return "recompute_granularity=full with CUDA graphs needs model.cuda_graph_impl=full_iteration, or none"


def _moe_over_router(subject: Subject) -> str | None:
    if subject.graph_implementation != "transformer_engine" or "moe" not in subject.replayed:
        return None
    if "moe_router" not in subject.graph_scopes:
        return None
    return (
        "recompute_modules has moe, which reaches over the edge of the captured router: drop moe_router from "
        "model.cuda_graph_scope, or use moe_act"
    )


def _dropout(subject: Subject) -> str | None:
    if subject.graph_implementation == "none" or subject.granularity != "selective":
        return None
    scopes, modules = _paired(subject), subject.replayed
    whole = not scopes or "full_iteration" in scopes
    if subject["attention_dropout"] != 0 and "core_attn" in modules and (whole or "attn" in scopes):
        return "core_attn is replayed inside a CUDA graph, which takes no random numbers: set model.attention_dropout=0"
    if subject["hidden_dropout"] != 0:
        named = [label for label in ("mlp", "moe") if label in modules and (whole or label in scopes)]
        if named:
            return (
                f"{named[0]} is replayed inside a CUDA graph, which takes no random numbers: set model.hidden_dropout=0"
            )
    if subject["moe_input_jitter_eps"] is not None and "moe" in modules and (whole or "moe" in scopes):
        return "moe is replayed inside a CUDA graph, which takes no random numbers: set model.moe_input_jitter_eps=null"
    return None


def _recompute_older(subject: Subject) -> str | None:
    if subject.graph_implementation == "none" or subject.granularity is None:
        return None
    attention_only = subject.graph_implementation == "transformer_engine" and subject["cuda_graph_scope"] == "attn"
    if subject.granularity != "selective" or not attention_only:
        return (
            f"{subject.revision.title} has recomputation with CUDA graphs only as selective with "
            "model.cuda_graph_impl=transformer_engine and model.cuda_graph_scope=attn: set these, or "
            "cuda_graph_impl=none"
        )
    named = [label for label in ("core_attn", "mla_up_proj") if label in subject.replayed]
    return f"recompute_modules has {named[0]}, which lies inside the captured attention: drop it" if named else None


def _inside(subject: Subject) -> str | None:
    if subject.graph_implementation == "none":
        return None
    scopes = _paired(subject)
    if "full_iteration" in scopes:
        return None
    captured = [label for scope in scopes or _INSIDE for label in _INSIDE.get(scope, ())]
    named = [label for label in subject.replayed if label in captured]
    if not named:
        return None
    return (
        f"{' and '.join(named)} lies inside a captured CUDA graph, and capture can go around its checkpoint: see in "
        "the record whether it was replayed before trusting its row, or leave its scope out of model.cuda_graph_scope"
    )


def _layernorm_router(subject: Subject) -> str | None:
    if "layernorm" not in subject.modules or subject.graph_implementation != "transformer_engine" or not subject.is_moe:
        return None
    scopes = subject.graph_scopes
    if "moe_router" not in scopes:
        return None
    overlapped = subject["moe_shared_expert_intermediate_size"] is not None and subject["moe_shared_expert_overlap"]
    if not overlapped and "moe_preprocess" in scopes and subject["moe_token_dispatcher_type"] == "alltoall":
        return None
    return (
        "recompute_modules has layernorm, and with the router captured only the norm before attention is replayed: add "
        "moe_preprocess to model.cuda_graph_scope (all-to-all dispatch, no shared-expert overlap), or expect less"
    )


def _paired(subject: Subject) -> list[str]:
    """The scopes in force: the local implementation captures router and preprocessing together or not at all."""
    scopes = subject.graph_scopes
    if subject.graph_implementation == "local" and ("moe_router" in scopes or "moe_preprocess" in scopes):
        return list(dict.fromkeys([*scopes, "moe_router", "moe_preprocess"]))
    return scopes


def _nearest(word: object) -> str:
    known = [*_SCOPES, "none", "local", "transformer_engine"]
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


RULES = (
    Rule("graph-switches", Kind.INVALID, Judge.CONFIG, _CONFIG, _switches),
    Rule("graph-implementation", Kind.INVALID, Judge.CONFIG, _CONFIG, _implementation, before="0.17.0"),
    Rule("graph-scope", Kind.INVALID, Judge.CONFIG, _CONFIG, _unknown_scope, "0.16.0", "0.17.0"),
    Rule("graph-scopes-together", Kind.INVALID, Judge.CONFIG, _CONFIG, _scopes_together, "0.16.0", "0.17.0"),
    Rule("graph-scopes-experts", Kind.INVALID, Judge.CONFIG, _CONFIG, _scopes_of_experts, "0.16.0", "0.17.0"),
    Rule("graph-full-recompute", Kind.INVALID, Judge.CONFIG, _CONFIG, _full_recompute, "0.16.0", "0.17.0"),
    Rule("graph-full-recompute", Kind.INVALID, Judge.CONFIG, _GUIDE, _full_recompute_newer, "0.17.0"),
    Rule("graph-moe-router", Kind.INVALID, Judge.CONFIG, _CONFIG, _moe_over_router, "0.16.0", "0.17.0"),
    Rule("graph-dropout", Kind.INVALID, Judge.CONFIG, _CONFIG, _dropout, "0.16.0", "0.17.0"),
    Rule("graph-recompute", Kind.INVALID, Judge.CONFIG, _CONFIG, _recompute_older, before="0.16.0"),
    Rule("graph-captures-module", Kind.RISKY, Judge.GUIDE, _GUIDE, _inside, "0.16.0", "0.17.0"),
    Rule(
        "graph-layernorm-router", Kind.NO_EFFECT, Judge.GUIDE, "TransformerLayer.__init__", _layernorm_router, "0.16.0"
    ),
)
