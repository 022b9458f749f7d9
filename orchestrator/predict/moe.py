"""What a mixture-of-experts layer keeps: router, dispatch, grouped experts, shared experts."""

from __future__ import annotations

from orchestrator.predict.mlp import stored
from orchestrator.predict.page import INDEX, STAT, Page

OPERATIONS = (
    "mlp_norm", "shared", "router", "permute", "dispatch", "sort", "fc1", "act", "fc2", "unsort", "combine",
    "unpermute", "mlp_add",
)  # fmt: skip

_LAYER = "transformer/transformer_layer.py TransformerLayer._forward_mlp"
_NORM = "TE ops/basic/rmsnorm.py RMSNorm.op_forward"
_GATE = "transformer/moe/moe_utils.py RouterGatingLinearFunction.forward"
_TOPK = "transformer/moe/moe_utils.py topk_routing_with_score_function"
_AUX = "transformer/moe/moe_utils.py compute_routing_scores_for_aux_loss"
_PERMUTE = "TE permutation.py _moe_permute_mask_map.forward"
_SORT = "TE permutation.py _moe_chunk_sort.forward"
_DISPATCH = "transformer/moe/token_dispatcher.py MoEAlltoAllTokenDispatcher.token_dispatch"
_EXPERTS = "transformer/moe/experts.py TEGroupedMLP.forward"
_GROUPED = "TE module/grouped_linear.py _GroupedLinear.forward"
_WEIGHTED = "fusions/fused_bias_swiglu.py WeightedSwiGLUFunction.forward"
_UNFUSED = "transformer/mlp.py MLP.forward (glu)"
_SHARED = "transformer/moe/shared_experts.py SharedExpertMLP.forward"
_MOE = "transformer/moe/moe_layer.py MoELayer.forward"

_MOE_LABEL = ("moe",)


def write_moe(page: Page, *, first: bool) -> None:
    """A mixture-of-experts MLP. What is routed is counted with the imbalance factor, as the fullest rank has it."""
    shapes, local = page.shapes, page.local
    experts = shapes.experts
    shard, element = local.shard, page.element
    if first:
        page.layer_input("mlp_norm", "mlp_add", _NORM)
    else:
        page.norm_input("MLP input", "mlp_norm", "mlp_add", _LAYER, ("layernorm",))
    separate = ("layernorm",)
    page.keep("pre-MLP norm output", "[t, h]", page.stream, "mlp_norm", "mlp_add", _GATE, separate)
    page.keep("pre-MLP norm's statistic", "[t]", shard * STAT, "mlp_norm", "mlp_norm", _NORM, separate)
    page.torch_norm("MLP input", shard * shapes.hidden, "mlp_norm", separate)
    if experts.shared_ffn:
        _shared(page)
    _router(page)
    _experts(page)
    page.hold("MoE output", "[t, h]", shard * shapes.hidden * element, "unpermute", "mlp_add", _MOE, _MOE_LABEL)
    page.hold("layer output", "[t, h]", page.stream, "mlp_add", "mlp_add", _LAYER)


def lingering(page: Page) -> int:
    """Bytes that a layer inside a checkpoint leaves alive from its backward to its next forward.

    The dispatcher keeps the router's probabilities as an attribute. Made in a replay, they hold that replay's graph,
    and with it the checkpoint's input, which is a leaf, and its gradient (self.probs, set in
    MoEAlltoAllTokenDispatcher.dispatch_preprocess). On an H200: 8192 bytes a token and layer of hidden size 2048.
    """
    return 2 * page.stream if page.shapes.experts.dispatcher == "alltoall" else 0


def routing_attributes(page: Page) -> int:
    """Bytes of the routing that the dispatcher keeps as attributes, from the first forward on."""
    experts, shard = page.shapes.experts, page.local.shard
    row_ids = shard * (2 * experts.count + 1) * 4 if experts.permute_fused else shard * experts.topk * INDEX
    return shard * experts.count * (experts.router_bytes + 1) + row_ids


def _shared(page: Page) -> None:
    shapes, local = page.shapes, page.local
    width = shapes.experts.shared_ffn // local.tp
    wide = width * (2 if shapes.gated else 1)
    tokens, element = local.tokens, page.element
    inside = ("moe", "shared_experts")
    if shapes.experts.shared_overlap and local.tp > 1 and local.sequence_parallel:
        page.keep("shared experts' input, gathered", "[T, h]", tokens * shapes.hidden * element, "shared", "fc1",
                  _SHARED, inside)  # fmt: skip
    page.keep("shared experts' FC1 output", "[T, 2f/tp]", stored(page, tokens * wide), "shared", "shared", _SHARED,
              inside)  # fmt: skip
    page.keep("shared experts' activation output", "[T, f/tp]", page.linear_input(tokens * width), "shared", "shared",
              _SHARED, inside)  # fmt: skip
    if shapes.gated and not shapes.fused_act:
        for name in ("activated gate", "linear half, shifted"):
            page.keep(f"shared experts' {name}", "[T, f/tp]", tokens * width * element, "shared", "shared", _UNFUSED,
                      inside)  # fmt: skip
    if shapes.experts.shared_gate:
        page.keep("shared experts' output before its gate", "[t, h]", page.stream, "shared", "shared", _SHARED, inside)
    page.hold("shared experts' output", "[t, h]", page.stream, "shared", "mlp_add", _MOE, _MOE_LABEL)


def _router(page: Page) -> None:
    experts, shard = page.shapes.experts, page.local.shard
    count, number = experts.count, experts.router_bytes
    scores = shard * count * number
    if experts.sigmoid:
        page.keep("router scores", "[t, E]", scores, "router", "router", _TOPK, _MOE_LABEL)
        page.keep("chosen scores and their sum", "[t, k + 1]", shard * (experts.topk + 1) * number, "router", "router",
                  _TOPK, _MOE_LABEL)  # fmt: skip
    else:
        page.keep("router softmax", "[t, E or k]", shard * experts.topk * STAT, "router", "router", _TOPK, _MOE_LABEL)
    page.keep("chosen experts", "[t, k]", shard * experts.topk * INDEX, "router", "router", _TOPK, _MOE_LABEL)
    if experts.aux_loss:
        extra = shard * number if experts.sigmoid else 0
        page.keep(
            "router scores for the balancing loss", "[t, E]", scores + extra, "router", "router", _AUX, _MOE_LABEL
        )


def _experts(page: Page) -> None:
    shapes, local, element = page.shapes, page.local, page.element
    experts = shapes.experts
    width_in = experts.latent or shapes.hidden
    sent = local.shard * experts.topk
    received = int(sent * local.etp * experts.imbalance)
    width = experts.ffn // local.etp
    wide = width * (2 if shapes.gated else 1)
    local_experts = max(1, experts.count // local.ep)
    inside, hidden = _MOE_LABEL, width_in * element
    if experts.latent:
        page.keep(
            "latent input", "[t, latent]", local.shard * experts.latent * element, "router", "permute", _MOE, inside
        )
    page.hold("permuted tokens", "[t*k, h]", sent * hidden, "permute", "unpermute", _MOE, inside)
    if local.ep > 1 or local.etp > 1:
        page.hold("tokens received", "[t*k, h]", received * hidden, "dispatch", "unpermute", _DISPATCH, inside)
    page.keep("experts' input", "[t*k, h]", page.linear_input(received * width_in), "sort", "unsort", _GROUPED, inside)
    page.quantise("experts' input", "[t*k, h]", received * width_in, "sort", "fc1", _GROUPED, inside)
    if not experts.permute_fused:
        page.keep("permutation", "[t*k]", sent * INDEX * 2, "permute", "unpermute", _MOE, inside)
    if local_experts > 1:
        page.keep(
            "sorting of chunks, there and back", "2 x [t*k]", 2 * received * 4, "sort", "unpermute", _SORT, inside
        )
    page.keep("probabilities of permuted tokens", "[t*k]", received * experts.router_bytes, "sort", "unsort", _WEIGHTED,
              inside)  # fmt: skip
    page.keep("experts' FC1 output", "[t*k, 2f/etp]" if shapes.gated else "[t*k, f/etp]", stored(page, received * wide),
              "fc1", "fc2", _WEIGHTED, inside)  # fmt: skip
    act = ("moe", "moe_act")
    if shapes.gated and not shapes.fused_act:
        for name in ("activated gate", "linear half, shifted"):
            page.keep(f"experts' {name}", "[t*k, f/etp]", received * width * element, "act", "act", _UNFUSED, act)
    if not shapes.fused_act:
        page.keep("experts' activation before weighting", "[t*k, f/etp]", received * width * element, "act", "act",
                  _EXPERTS, act)  # fmt: skip
    kept = page.linear_input(received * width)
    page.keep("experts' activation output", "[t*k, f/etp]", kept, "act", "fc2", _GROUPED, act)
    page.quantise("experts' activation output", "[t*k, f/etp]", received * width, "act", "fc2", _GROUPED, act)
    page.hold("experts' FC2 output", "[t*k, h]", received * hidden, "fc2", "unsort", _EXPERTS, inside)
    if local_experts > 1:
        page.hold("experts' output, unsorted", "[t*k, h]", received * hidden, "unsort", "combine", _SORT, inside)
    if local.ep > 1 or local.etp > 1:
        page.hold("tokens sent back", "[t*k, h]", sent * hidden, "combine", "unpermute", _DISPATCH, inside)
    fc1, fc2 = local_experts * width_in * wide, local_experts * width_in * width
    one, both = received * width * element, kept + stored(page, received * wide)
    incoming = received * hidden + page.quantised_gradient(received * width_in)
    page.moment("backward of experts' FC2", incoming + one + page.weight_gradient(fc2), 0, inside)
    page.ready("an expert's FC2 gradient", one, width_in * width, kept, inside)
    page.moment("backward of the experts' activation", one + received * wide * element, kept, inside)
    linear = received * (wide * element + hidden) + page.quantised_gradient(received * wide)
    page.moment("backward of experts' FC1", linear + page.weight_gradient(fc1), both, inside)
    entered = page.linear_input(received * width_in)
    page.ready("an expert's FC1 gradient", received * hidden, width_in * wide, both + entered, inside)
