"""Experts: routing, dispatch, capacity, shared experts, and how they are spread."""

from __future__ import annotations

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule, divisors, near
from orchestrator.plan.subject import Subject

_CONFIG = "TransformerConfig.__post_init__"
_BALANCED = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")


def _no_experts(subject: Subject) -> str | None:
    if subject.integer("expert_model_parallel_size") <= 1 or subject.is_moe:
        return None
    return (
        f"parallelism.ep={subject['expert_model_parallel_size']} needs experts, and model.num_moe_experts is null: "
        "set ep=1"
    )


def _experts_by_ranks(subject: Subject) -> str | None:
    if not subject.is_moe:
        return None
    experts, ep = subject.positive("num_moe_experts"), subject.positive("expert_model_parallel_size")
    if experts % ep == 0:
        return None
    return (
        f"model.num_moe_experts={experts} is no multiple of parallelism.ep={ep}: nearest ep "
        f"{near(ep, divisors(experts))}"
    )


def _width_without_experts(subject: Subject) -> str | None:
    if subject.is_moe or subject["moe_ffn_hidden_size"] is None:
        return None
    return "model.moe_ffn_hidden_size is set, and model.num_moe_experts is null: set both, or neither"


def _pattern(subject: Subject) -> str | None:
    pattern = subject["moe_layer_freq"]
    if not subject.is_moe:
        return None
    layers = subject.positive("num_layers")
    if isinstance(pattern, list):
        if len(pattern) == layers and all(item in (0, 1) for item in pattern):
            return None
        return (
            f"model.moe_layer_freq lists {len(pattern)} layers, and model.num_layers={layers}: give a 1 (MoE) or 0 "
            "(dense) for each layer, or one number N for every Nth"
        )
    return None if pattern >= 1 else f"model.moe_layer_freq={pattern} must be 1 or more, or a list of 0 and 1"


def _top_k(subject: Subject) -> str | None:
    if not subject.is_moe:
        return None
    chosen, experts = subject.integer("moe_router_topk"), subject.positive("num_moe_experts")
    if 1 <= chosen <= experts:
        return None
    return f"model.moe_router_topk={chosen} must be from 1 to model.num_moe_experts={experts}"


def _top_one(subject: Subject) -> str | None:
    if subject["moe_router_topk"] != 1 or subject["moe_router_score_function"] != "softmax":
        return None
    if subject["moe_router_pre_softmax"] or subject["moe_router_load_balancing_type"] == "sinkhorn":
        return None
    return "model.moe_router_topk=1 needs model.moe_router_pre_softmax=true: a softmax over one value has no gradient"


def _groups(subject: Subject) -> str | None:
    chosen, groups = subject["moe_router_group_topk"], subject["moe_router_num_groups"]
    if not chosen:
        return None
    if not groups:
        return "model.moe_router_group_topk needs model.moe_router_num_groups, and it is null"
    if not subject.is_moe:
        return "model.moe_router_group_topk needs experts, and model.num_moe_experts is null: set it to null"
    experts = subject.integer("num_moe_experts")
    if experts % groups:
        return (
            f"model.num_moe_experts={experts} is no multiple of model.moe_router_num_groups={groups}: nearest groups "
            f"{near(groups, divisors(abs(experts) or 1))}"
        )
    if chosen > groups:
        return f"model.moe_router_group_topk={chosen} must be at most model.moe_router_num_groups={groups}"
    return None


def _expert_bias(subject: Subject) -> str | None:
    if not subject["moe_router_enable_expert_bias"] or subject["moe_router_score_function"] == "sigmoid":
        return None
    return "model.moe_router_enable_expert_bias=true needs model.moe_router_score_function=sigmoid"


def _balancing_list(subject: Subject) -> str | None:
    kinds, coefficients = subject["moe_router_load_balancing_type"], subject["moe_aux_loss_coeff"]
    if not isinstance(kinds, list) or (isinstance(coefficients, list) and len(coefficients) == len(kinds)):
        return None
    return (
        f"model.moe_router_load_balancing_type lists {len(kinds)} kinds: model.moe_aux_loss_coeff needs as many numbers"
    )


def _capacity(subject: Subject) -> str | None:
    if subject["moe_expert_capacity_factor"] is None:
        return None
    kinds = subject["moe_router_load_balancing_type"]
    unfit = [str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind not in _BALANCED]
    if not unfit:
        return None
    return (
        f"model.moe_expert_capacity_factor does not work with model.moe_router_load_balancing_type={unfit[0]}: use "
        f"{', '.join(_BALANCED)}"
    )


def _padding(subject: Subject) -> str | None:
    if not subject["moe_pad_expert_input_to_capacity"]:
        return None
    factor = subject["moe_expert_capacity_factor"]
    if factor is not None and factor >= 0:
        return None
    return "model.moe_pad_expert_input_to_capacity=true needs model.moe_expert_capacity_factor, 0 or more"


def _flex_padding(subject: Subject) -> str | None:
    if subject["moe_token_dispatcher_type"] != "flex" or not subject["moe_pad_expert_input_to_capacity"]:
        return None
    if subject.revision.at_least("0.16.0"):
        if not subject["moe_enable_deepep"] and subject["moe_flex_dispatcher_backend"] != "deepep":
            return None
        return (
            "model.moe_pad_expert_input_to_capacity=true does not work with the flex dispatcher on DeepEP: set "
            "model.moe_flex_dispatcher_backend=hybridep, or model.moe_token_dispatcher_type=alltoall"
        )
    return (
        "model.moe_pad_expert_input_to_capacity=true does not work with model.moe_token_dispatcher_type=flex: use "
        "alltoall"
    )


def _flex_alone(subject: Subject) -> str | None:
    if not subject.is_moe or subject["moe_token_dispatcher_type"] != "flex":
        return None
    etp = subject.given_integer("expert_tensor_parallel_size") or subject.integer("tensor_model_parallel_size")
    if etp * subject.integer("expert_model_parallel_size") > 1:
        return None
    return (
        "model.moe_token_dispatcher_type=flex needs experts on several ranks (etp times ep above 1; etp=null follows "
        "tp): use model.moe_token_dispatcher_type=alltoall, or raise parallelism.ep"
    )


def _deep_ep(subject: Subject) -> str | None:
    if not subject["moe_enable_deepep"] or subject["moe_token_dispatcher_type"] == "flex":
        return None
    return "model.moe_enable_deepep=true needs model.moe_token_dispatcher_type=flex"


def _two_back_ends(subject: Subject) -> str | None:
    if not subject["moe_enable_deepep"] or subject["moe_flex_dispatcher_backend"] != "hybridep":
        return None
    return "model.moe_enable_deepep=true and model.moe_flex_dispatcher_backend=hybridep exclude each other: drop one"


def _shared_size(subject: Subject) -> str | None:
    size = subject["moe_shared_expert_intermediate_size"]
    if size is None or size > 0:
        return None
    return f"model.moe_shared_expert_intermediate_size={size} must be the width of all shared experts together, or null"


def _shared_overlap(subject: Subject) -> str | None:
    if subject["moe_shared_expert_intermediate_size"] is None or not subject["moe_shared_expert_overlap"]:
        return None
    if subject["moe_token_dispatcher_type"] == "alltoall":
        return None
    return (
        "model.moe_shared_expert_overlap=true needs model.moe_token_dispatcher_type=alltoall, not "
        f"{subject['moe_token_dispatcher_type']}"
    )


def _bias(subject: Subject) -> str | None:
    if not (subject.is_moe and subject["add_bias_linear"]):
        return None
    etp = subject.given_integer("expert_tensor_parallel_size") or subject.integer("tensor_model_parallel_size")
    if etp == 1:
        return None
    return (
        f"model.add_bias_linear=true with experts needs parallelism.etp=1, and it is {etp} (null follows tp): set "
        "etp=1, or model.add_bias_linear=false"
    )


def _quantized_padding(subject: Subject) -> str | None:
    newer = subject.revision.at_least("0.16.0")
    asked = subject["moe_router_padding_for_fp8"] or (newer and subject["moe_router_padding_for_quantization"])
    if not asked:
        return None
    name = "fp8" if subject["moe_router_padding_for_fp8"] else "quantization"
    named = f"model.moe_router_padding_for_{name}=true"
    if subject["fp8"] is None and not (newer and subject["fp4"] is not None):
        return f"{named} needs a quantized format: set precision.fp8, or set it to false"
    if subject["moe_token_dispatcher_type"] in ("allgather", "alltoall_seq"):
        return f"{named} needs model.moe_token_dispatcher_type=alltoall or flex"
    return None


def _sequence_parallel(subject: Subject) -> str | None:
    tp = subject.positive("tensor_model_parallel_size")
    if not subject.is_moe or tp == 1 or subject["sequence_parallel"]:
        return None
    return f"MoE layers with parallelism.tp={tp} need parallelism.sequence_parallel=true"


RULES = (
    Rule("experts-missing", Kind.INVALID, Judge.CONFIG, _CONFIG, _no_experts),
    Rule("experts-expert-parallel", Kind.INVALID, Judge.RUN, "BaseMoELayer.__init__", _experts_by_ranks),
    Rule("moe-width-without-experts", Kind.INVALID, Judge.CONFIG, _CONFIG, _width_without_experts),
    Rule("moe-layer-freq", Kind.INVALID, Judge.RUN, "gpt_layer_specs.get_gpt_decoder_layer_specs", _pattern),
    Rule("moe-top-k", Kind.INVALID, Judge.RUN, "moe_utils.topk_routing_with_score_function", _top_k),
    Rule("moe-top-one", Kind.INVALID, Judge.CONFIG, _CONFIG, _top_one),
    Rule("moe-groups", Kind.INVALID, Judge.CONFIG, _CONFIG, _groups),
    Rule("moe-expert-bias", Kind.INVALID, Judge.CONFIG, _CONFIG, _expert_bias),
    Rule("moe-balancing-coefficients", Kind.INVALID, Judge.CONFIG, _CONFIG, _balancing_list),
    Rule("moe-capacity-balancing", Kind.INVALID, Judge.CONFIG, _CONFIG, _capacity),
    Rule("moe-padding-capacity", Kind.INVALID, Judge.CONFIG, _CONFIG, _padding),
    Rule("moe-flex-padding", Kind.INVALID, Judge.CONFIG, _CONFIG, _flex_padding),
    Rule("moe-flex-alone", Kind.INVALID, Judge.RUN, "MoEFlexTokenDispatcher.__init__", _flex_alone),
    Rule("deepep-flex", Kind.INVALID, Judge.CONFIG, _CONFIG, _deep_ep),
    Rule("deepep-hybridep", Kind.INVALID, Judge.CONFIG, _CONFIG, _two_back_ends, since="0.16.0"),
    Rule("shared-experts-size", Kind.INVALID, Judge.CONFIG, _CONFIG, _shared_size),
    Rule("shared-experts-dispatcher", Kind.INVALID, Judge.CONFIG, _CONFIG, _shared_overlap),
    Rule("moe-bias-etp", Kind.INVALID, Judge.CONFIG, _CONFIG, _bias),
    Rule("moe-padding-quantized", Kind.INVALID, Judge.CONFIG, _CONFIG, _quantized_padding),
    Rule("moe-sequence-parallel", Kind.INVALID, Judge.RUN, "MoELayer.forward", _sequence_parallel),
)
