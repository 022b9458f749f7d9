"""Attention: heads over tensor-parallel ranks, multi-latent attention, gated delta nets, sparse attention."""

from __future__ import annotations

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule, divisors, near
from orchestrator.plan.subject import Subject

_CONFIG = "TransformerConfig.__post_init__"


def _heads(subject: Subject) -> str | None:
    heads, tp = subject.positive("num_attention_heads"), subject.positive("tensor_model_parallel_size")
    if heads % tp == 0:
        return None
    return (
        f"model.num_attention_heads={heads} is no multiple of parallelism.tp={tp}: nearest tp "
        f"{near(tp, divisors(heads))}"
    )


def _groups(subject: Subject) -> str | None:
    tp = subject.positive("tensor_model_parallel_size")
    groups = subject.given_integer("num_query_groups") or subject.positive("num_attention_heads")
    if groups < 1 or groups % tp == 0 or tp % groups == 0:
        return None
    fitting = [size for size in range(1, 2 * max(groups, tp) + 1) if groups % size == 0 or size % groups == 0]
    return (
        f"model.num_query_groups={groups} is neither a multiple nor a divisor of parallelism.tp={tp}: nearest tp "
        f"{near(tp, fitting)}"
    )


def _groups_strict(subject: Subject) -> str | None:
    tp = subject.positive("tensor_model_parallel_size")
    groups = subject.given_integer("num_query_groups") or subject.positive("num_attention_heads")
    if groups < 1 or groups % tp == 0:
        return None
    return (
        f"model.num_query_groups={groups} is no multiple of parallelism.tp={tp}, which this release needs: nearest tp "
        f"{near(tp, divisors(groups))}"
    )


def _heads_by_groups(subject: Subject) -> str | None:
    heads, groups = subject.positive("num_attention_heads"), subject.given_integer("num_query_groups")
    if groups is None or groups < 1 or subject["multi_latent_attention"] or heads % groups == 0:
        return None
    return (
        f"model.num_attention_heads={heads} is no multiple of model.num_query_groups={groups}: nearest groups "
        f"{near(groups, divisors(heads))}"
    )


def _interleaved_mla(subject: Subject) -> str | None:
    if not (subject["multi_latent_attention"] and subject["rotary_interleaved"]):
        return None
    return "model.rotary_interleaved=true cannot go with model.multi_latent_attention=true: set it to false"


def _fused_rope_mla(subject: Subject) -> str | None:
    if not (subject["multi_latent_attention"] and subject["apply_rope_fusion"]) or subject["rope_type"] == "yarn":
        return None
    return (
        "model.apply_rope_fusion=true with multi-latent attention needs model.rope_type=yarn, not "
        f"{subject['rope_type']}: set one or the other"
    )


def _cached_latents(subject: Subject) -> str | None:
    if not (subject["multi_latent_attention"] and subject["cache_mla_latents"] and subject["apply_rope_fusion"]):
        return None
    return "model.cache_mla_latents=true cannot go with model.apply_rope_fusion=true: set one of them to false"


def _delta_net(subject: Subject) -> str | None:
    if subject["experimental_attention_variant"] != "gated_delta_net":
        return None
    needed = (
        "linear_attention_freq",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
    )
    for name in needed:
        if subject[name] is None:
            return f"model.experimental_attention_variant=gated_delta_net needs model.{name}, and it is null"
    keys, values = subject.positive("linear_num_key_heads"), subject.positive("linear_num_value_heads")
    tp = subject.positive("tensor_model_parallel_size")
    if values % keys:
        return f"model.linear_num_value_heads={values} must be a multiple of model.linear_num_key_heads={keys}"
    if keys % tp or values % tp:
        fitting = [size for size in divisors(keys) if values % size == 0]
        return (
            f"model.linear_num_key_heads={keys} and model.linear_num_value_heads={values} must be multiples of "
            f"parallelism.tp={tp}: nearest tp {near(tp, fitting)}"
        )
    return None


def _variant_context_parallel(subject: Subject) -> str | None:
    variant = subject["experimental_attention_variant"]
    if variant not in ("gated_delta_net", "dsa") or subject.integer("context_parallel_size") == 1:
        return None
    return (
        f"model.experimental_attention_variant={variant} does not work with context parallelism: set parallelism.cp=1"
    )


def _sparse_rope(subject: Subject) -> str | None:
    if subject["experimental_attention_variant"] != "dsa" or not subject["apply_rope_fusion"]:
        return None
    return "model.experimental_attention_variant=dsa does not work with model.apply_rope_fusion=true: set it to false"


def _communication(subject: Subject) -> str | None:
    listed = subject["cp_comm_type"]
    if not isinstance(listed, list) or subject.positive("context_parallel_size") == 1:
        return None
    layers = subject.integer("num_layers")
    if len(listed) == layers:
        return None
    return f"model.cp_comm_type lists {len(listed)} layers, and the model has {layers}: give one word, or one a layer"


RULES = (
    Rule("heads-tensor-parallel", Kind.INVALID, Judge.CONFIG, _CONFIG, _heads),
    Rule("groups-tensor-parallel", Kind.INVALID, Judge.CONFIG, _CONFIG, _groups, since="0.16.0"),
    Rule("groups-tensor-parallel", Kind.INVALID, Judge.CONFIG, _CONFIG, _groups_strict, before="0.16.0"),
    Rule("heads-groups", Kind.INVALID, Judge.RUN, "SelfAttention.get_query_key_value_tensors", _heads_by_groups),
    Rule("mla-rotary-interleaved", Kind.INVALID, Judge.CONFIG, _CONFIG, _interleaved_mla),
    Rule("mla-rope-fusion", Kind.INVALID, Judge.CONFIG, "MLATransformerConfig.__post_init__", _fused_rope_mla),
    Rule("mla-cached-latents", Kind.INVALID, Judge.CONFIG, "MLATransformerConfig.__post_init__", _cached_latents),
    Rule("gated-delta-net", Kind.INVALID, Judge.CONFIG, _CONFIG, _delta_net, since="0.16.0"),
    Rule("variant-context-parallel", Kind.INVALID, Judge.CONFIG, _CONFIG, _variant_context_parallel, since="0.16.0"),
    Rule("sparse-rope-fusion", Kind.INVALID, Judge.CONFIG, _CONFIG, _sparse_rope, since="0.16.0"),
    Rule("cp-comm-type", Kind.INVALID, Judge.CONFIG, _CONFIG, _communication),
)
