"""What attention keeps: multi-latent, and standard or grouped-query; fused or not."""

from __future__ import annotations

from orchestrator.predict.page import BLOCK, STAT, Page

OPERATIONS = ("input_norm", "down", "up", "core", "proj", "add")

_LAYER = "transformer/transformer_layer.py TransformerLayer._forward_attention"
_MLA = "transformer/multi_latent_attention.py MLASelfAttention.get_query_key_value_tensors"
_GQA = "transformer/attention.py SelfAttention.get_query_key_value_tensors"
_CORE = "TE attention/dot_product_attention/backends.py FusedAttnFunc.forward"
_UNFUSED = "transformer/dot_product_attention.py DotProductAttention.forward"
_SOFTMAX = "fusions/fused_softmax.py FusedScaleMaskSoftmax.forward_torch_softmax"
_NORM_LINEAR = "TE module/layernorm_linear.py _LayerNormLinear.forward"
_LINEAR = "TE module/linear.py _Linear.forward"
_NORM = "TE ops/basic/rmsnorm.py RMSNorm.op_forward"
_ROPE = "models/common/embeddings/rope_utils.py _apply_rotary_pos_emb_bshd"
_GATE = "transformer/attention.py Attention._apply_output_gate"
_PROJ = "transformer/attention.py Attention.forward (linear_proj)"


def write_mla(page: Page) -> None:
    """Multi-latent attention. The latents are small; what `mla_up_proj` gives back are queries, keys and values."""
    shapes, local, element = page.shapes, page.local, page.element
    head = shapes.attention
    heads = head.heads // local.tp
    tokens, shard = local.tokens, local.shard
    up = ("mla_up_proj",)
    # Transformer Engine norms the latents inside the up-projections, so `mla_up_proj` drops them; else it keeps them.
    norms = up if page.numerics.transformer_engine else ()
    page.layer_input("input_norm", "add", _NORM, ("layernorm",))
    _input_norm(page)
    if head.q_lora:
        page.keep("query latent", "[t, q_lora]", shard * head.q_lora * element, "down", "proj", _MLA)
        if head.qk_norm:
            page.keep("query latent, normed", "[t, q_lora]", page.linear_input(shard * head.q_lora), "up", "up",
                      _NORM_LINEAR, norms)  # fmt: skip
            page.keep("query latent norm's statistic", "[t]", shard * STAT, "up", "up", _NORM_LINEAR, norms)
    latent, rope = head.kv_lora, head.rope_dim
    combined = shard * (latent + rope) * element
    if page.numerics.transformer_engine:
        # The latent is a slice of the projection's output. The norm copies it to be contiguous, and the output goes;
        # a checkpoint keeps its inputs, which are slices, and with them the whole output.
        page.keep_instead("key/value latent and rope key", "[t, kv_lora + rope]", combined, "down", "up", _MLA, up)
        page.keep("key/value latent", "[t, kv_lora]", shard * latent * element, "up", "up", _NORM_LINEAR, up)
    elif local.sequence_parallel and local.tp > 1:
        # Gathered from the ranks that share the projection, and the latent scattered again for its norm.
        page.keep_instead("key/value latent and rope key, gathered", "[T, kv_lora + rope]",
                          tokens * (latent + rope) * element, "down", "up", _MLA, up)  # fmt: skip
        scattered = 0 if page.norm_copies and head.qk_norm else shard * latent * element
        page.keep("key/value latent", "[t, kv_lora]", scattered, "down", "proj", _MLA)
    elif page.norm_copies and head.qk_norm:
        page.keep_instead("key/value latent and rope key", "[t, kv_lora + rope]", combined, "down", "proj", _MLA, up)
    else:
        page.keep("key/value latent and rope key", "[t, kv_lora + rope]", combined, "down", "proj", _MLA)
    if local.sequence_parallel and local.tp > 1 and page.numerics.transformer_engine:
        page.keep_instead("rope key, gathered", "[T, rope]", tokens * rope * element, "down", "up", _MLA, up)
    if head.qk_norm:
        page.keep("key/value latent, normed", "[t, kv_lora]", page.linear_input(shard * latent), "up", "up",
                  _NORM_LINEAR, norms)  # fmt: skip
        page.keep("key/value latent norm's statistic", "[t]", shard * STAT, "up", "up", _NORM_LINEAR, norms)
        page.torch_norm("key/value latent", shard * latent, "up")
    wide = head.qk_dim + rope
    page.hold("queries before rope", "[T, n/tp, qk + rope]", tokens * heads * wide * element, "up", "up", _MLA, up)
    page.hold("keys and values, expanded", "[T, n/tp, qk + v]", tokens * heads * (head.qk_dim + head.v_dim) * element,
              "up", "up", _MLA, up)  # fmt: skip
    _rope(page, up)
    page.keep("queries", "[T, n/tp, qk + rope]", tokens * heads * wide * element, "up", "proj", _MLA, up)
    page.keep("keys", "[T, n/tp, qk + rope]", tokens * heads * wide * element, "up", "proj", _MLA, up)
    page.keep("values", "[T, n/tp, v]", tokens * heads * head.v_dim * element, "up", "proj", _MLA, up)
    _core(page, heads, head.v_dim)
    _moment(page, heads, heads * (2 * wide + head.v_dim), heads * head.v_dim, wide)


def write_gqa(page: Page) -> None:
    """Standard and grouped-query attention: the norm is part of the projection, so `layernorm` finds none here."""
    shapes, local, element = page.shapes, page.local, page.element
    head = shapes.attention
    heads, groups = head.heads // local.tp, max(1, head.groups // local.tp)
    tokens = local.tokens
    page.layer_input("input_norm", "add", _NORM_LINEAR, ("layernorm",))
    if page.numerics.transformer_engine:
        page.keep("norm output", "[t, h]", page.linear_input(local.shard * shapes.hidden), "input_norm", "up",
                  _NORM_LINEAR)  # fmt: skip
        page.quantise("norm output", "[t, h]", local.shard * shapes.hidden, "up", "up", _NORM_LINEAR)
        page.keep("norm's statistic", "[t]", local.shard * STAT, "input_norm", "up", _NORM_LINEAR)
    else:
        _input_norm(page)
    every = (heads * (2 if head.output_gate else 1) + 2 * groups) * head.head_dim
    mixed = tokens * every * element
    core = ("core_attn",)
    _mixed(page, mixed, head.fused_core or heads == groups)
    if head.output_gate:
        page.keep("output gate", "[T, n/tp, d]", tokens * heads * head.head_dim * element, "up", "proj", _GQA)
    if head.qk_norm:
        for name, count in (("queries", heads), ("keys", groups)):
            if page.numerics.transformer_engine or name == "queries":
                page.keep(f"{name} before their norm", "[T, n/tp, d]", tokens * count * head.head_dim * element,
                          "up", "up", _NORM)  # fmt: skip
            page.keep(f"{name}' norm's statistic", "[T, n/tp]", tokens * count * STAT, "up", "up", _NORM)
            page.torch_norm(f"{name}' norm's input", tokens * count * head.head_dim, "up")
    _rope(page, ())
    query, single = tokens * heads * head.head_dim * element, tokens * groups * head.head_dim * element
    page.keep("queries", "[T, n/tp, d]", query, "up", "proj", _GQA)
    # Elsewhere than in Transformer Engine, values stay a view of what the projection made.
    copied = single if page.numerics.transformer_engine else 0
    if head.fused_core or heads == groups:
        page.keep("keys", "[T, g/tp, d]", single, "up", "proj", _GQA)
        page.keep("values", "[T, g/tp, d]", copied, "up", "proj", _GQA)
    else:
        page.keep_instead("keys", "[T, g/tp, d]", single, "up", "proj", _GQA, core)
        page.keep_instead("values", "[T, g/tp, d]", copied, "up", "proj", _GQA, core)
        page.keep("keys, repeated for each query head", "[T, n/tp, d]", query, "core", "core", _UNFUSED, core)
        page.keep("values, repeated for each query head", "[T, n/tp, d]", query, "core", "core", _UNFUSED, core)
    _core(page, heads, head.head_dim)
    repeated = 0 if head.fused_core or heads == groups else 2 * (heads - groups)
    _moment(page, heads, (heads + 2 * groups + repeated) * head.head_dim, heads * head.head_dim, head.head_dim)


def _mixed(page: Page, size: int, as_they_are: bool) -> None:
    """What the projection made: Transformer Engine copies queries, keys and values out of it. Torch's norm of the keys
    saves a view of it, and so does other attention of the values, unless it repeats them for each query head."""
    name, shape = "queries, keys and values, interleaved", "[T, (n + 2g)/tp, d]"
    if page.numerics.transformer_engine:
        page.hold(name, shape, size, "up", "up", _GQA)
    elif page.shapes.attention.qk_norm or as_they_are:
        page.keep(name, shape, size, "up", "core", _GQA)
    else:
        page.keep_instead(name, shape, size, "up", "core", _GQA, ("core_attn",))


def _input_norm(page: Page) -> None:
    shard = page.local.shard
    separate = ("layernorm",)
    # Saved by each projection that reads it: one tensor in BF16, one quantised copy for each in FP8.
    readers = 2 if page.numerics.fp8 else 1
    page.keep("input norm output", "[t, h]", readers * page.linear_input(shard * page.shapes.hidden), "input_norm",
              "add", _LINEAR, separate)  # fmt: skip
    page.keep("input norm's statistic", "[t]", shard * STAT, "input_norm", "input_norm", _NORM, separate)
    page.torch_norm("input norm's input", shard * page.shapes.hidden, "input_norm", separate)


def _rope(page: Page, labels: tuple[str, ...]) -> None:
    head = page.shapes.attention
    if head.rope_dim and not head.rope_fused:
        size = 4 * page.local.seq * head.rope_dim * page.element
        page.keep("rope cosines and sines", "4 x [s/cp, rope]", size, "up", "up", _ROPE, labels)


def _core(page: Page, heads: int, width: int) -> None:
    local, element = page.local, page.element
    core = ("core_attn",)
    if page.shapes.attention.fused_core:
        page.keep("softmax statistic", "[T, n/tp]", local.tokens * heads * STAT, "core", "core", _CORE, core)
        # Two numbers, also without dropout; on an H200, `core_attn` saved 512 bytes a layer beyond the statistic.
        page.keep("state of dropout's generator", "[2]", BLOCK, "core", "core", _CORE, core)
    else:
        numbers = local.tokens * heads * local.seq * local.cp
        square = numbers * element
        # Without a fused kernel, the softmax is made of operations that compute in float32, and keeps what it returned.
        wide = numbers * STAT if element != STAT and not page.numerics.cuda else 0
        page.hold("attention scores", "[b, n/tp, s/cp, s]", square + wide, "core", "core", _UNFUSED, core)
        page.keep("attention probabilities in float32", "[b, n/tp, s/cp, s]", wide, "core", "core", _SOFTMAX, core)
        page.keep("attention probabilities", "[b, n/tp, s/cp, s]", square, "core", "core", _UNFUSED, core)
    page.keep("attention output", "[T, n/tp, v]", local.tokens * heads * width * element, "core", "proj", _PROJ)
    if page.shapes.attention.output_gate:
        # The gate's product reads the output, and the projection what the product made.
        page.keep("attention output, gated", "[T, n/tp, v]", page.linear_input(local.tokens * heads * width), "proj",
                  "proj", _GATE)  # fmt: skip
    page.quantise("attention output", "[T, n/tp, v]", local.tokens * heads * width, "proj", "proj", _LINEAR)
    if page.numerics.fp8 and page.numerics.fp8_recipe == "delayed":
        # Else it saves the original, which the core keeps too (Attention.__init__, set_save_original_input).
        page.keep("attention output, quantised", "[T, n/tp, v]", local.tokens * heads * width, "proj", "proj", _LINEAR)
    page.hold("projection output", "[t, h]", page.stream, "proj", "add", _LAYER)


def _moment(page: Page, heads: int, qkv: int, out: int, width: int) -> None:
    """`qkv`, `out` and `width` are numbers a token: of queries, keys and values, of the output, and of a query head."""
    local, element = page.local, page.element
    made = local.tokens * (qkv + out) * element
    copied = 0
    if not page.shapes.attention.fused_core:
        # Gradients of the probabilities and of the scores.
        made += 2 * local.tokens * heads * local.seq * local.cp * element
        # Queries and keys go into a batched product transposed: their gradients come out of it so, and are copied.
        copied = 2 * local.tokens * heads * width * element
        if not page.numerics.cuda:
            # The causal mask is filled in place into a view of the scores. Its backward (torch/csrc/autograd,
            # CopySlices) has the scores' gradient, a copy of it, the view's clone and zeros; probabilities, values and
            # output are gone by then. A GPU has a kernel that masks.
            square = local.tokens * heads * local.seq * local.cp * element
            output = local.tokens * out * element
            masked, gone = 4 * square + output + page.stream, square + 2 * output
            page.moment("backward of the causal mask", masked, gone, ("core_attn",), mixer=True)
    page.moment("backward of core attention", made, 0, ("core_attn",), copied=copied, mixer=True)
