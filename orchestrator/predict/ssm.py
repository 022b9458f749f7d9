"""What a Mamba mixer and a gated delta net keep."""

from __future__ import annotations

from orchestrator.predict.page import STAT, Page

_NORM_LINEAR = "TE module/layernorm_linear.py _LayerNormLinear.forward"
_MAMBA = "ssm/mamba_mixer.py MambaMixer.forward (mamba_split_conv1d_scan_combined)"
_DELTA = "ssm/gated_delta_net.py GatedDeltaNet.forward"
_LINEAR = "TE module/linear.py _Linear.forward"
_CONV = "ssm/gated_delta_net.py GatedDeltaNet.forward (conv1d, where there is no causal_conv1d)"
_GATED = "ssm/gated_delta_net.py GatedDeltaNet._apply_gated_norm"
_L2NORM = "fla modules/norm/l2norm.py L2NormFunction.forward"
_RULE = "fla ops/gated_delta_rule/chunk.py ChunkGatedDeltaRuleFunction.forward"
_CHUNK = 64
"""Tokens of a chunk (fla ops/gated_delta_rule/chunk.py, chunk_size)."""
_MAMBA_LAYER = "ssm/mamba_layer.py MambaLayer.forward"


def write_mamba(page: Page) -> None:
    """A Mamba 2 mixer on its memory-efficient path: it keeps the projection and the scan's output, no states."""
    shapes, local, element = page.shapes, page.local, page.element
    mamba, tokens = shapes.mamba, local.tokens
    inner, groups = mamba.inner // local.tp, max(1, mamba.groups // local.tp)
    projected = 2 * inner + 2 * groups * mamba.state + mamba.heads // local.tp
    page.layer_input("input_norm", "add", _NORM_LINEAR)
    page.keep("norm output", "[t, h]", page.linear_input(local.shard * shapes.hidden), "input_norm", "up", _NORM_LINEAR)
    page.keep("norm's statistic", "[t]", local.shard * STAT, "input_norm", "up", _NORM_LINEAR)
    size = tokens * projected * element
    page.hold("projection, sequence first", "[T, (2i + 2gN + n)/tp]", size, "up", "up", _MAMBA)
    page.keep("projection (z, x, B, C, dt)", "[T, (2i + 2gN + n)/tp]", size, "up", "proj", _MAMBA)
    page.hold("convolved x, B, C", "[T, (i + 2gN)/tp]", tokens * (inner + 2 * groups * mamba.state) * element, "core",
              "core", _MAMBA)  # fmt: skip
    chunk = 128
    states = tokens // chunk * inner * mamba.state * 4
    page.hold("states between chunks", "[T/128, i/tp, N]", states, "core", "core", _MAMBA)
    page.keep("scan output before its norm", "[T, i/tp]", tokens * inner * element, "core", "core", _MAMBA)
    page.keep("gated norm's statistic", "[T, g/tp]", tokens * groups * STAT, "core", "core", _MAMBA)
    page.hold("scan output, batch first", "[T, i/tp]", tokens * inner * element, "core", "proj", _MAMBA)
    page.keep("mixer output", "[T, i/tp]", page.linear_input(tokens * inner), "proj", "proj", _LINEAR)
    page.hold("projection output", "[t, h]", page.stream, "proj", "add", _MAMBA_LAYER)
    page.hold("layer output", "[t, h]", page.stream, "add", "add", _MAMBA_LAYER)
    page.moment("backward of the scan", tokens * (projected + 2 * inner) * element + 2 * states, 0, mixer=True)


def write_delta(page: Page) -> None:
    """A gated delta net: convolution, normed and repeated keys and queries, the chunked rule, a gated norm.

    What the rule and the norm of queries and keys keep is fla-core 0.6.0's.
    """
    shapes, local, element = page.shapes, page.local, page.element
    delta, tokens, tp = shapes.delta, local.tokens, local.tp
    keys, values = delta.key_dim * delta.key_heads // tp, delta.value_dim * delta.value_heads // tp
    heads = delta.value_heads // tp
    repeated = heads * delta.key_dim
    page.layer_input("input_norm", "add", _NORM_LINEAR)
    page.keep("norm output", "[t, h]", page.linear_input(local.shard * shapes.hidden), "input_norm", "up", _NORM_LINEAR)
    page.keep("norm's statistic", "[t]", local.shard * STAT, "input_norm", "up", _NORM_LINEAR)
    projected = tokens * (2 * keys + 2 * values + 2 * heads) * element
    mixed = 2 * keys + values
    # Variables of the mixer's forward hold the projection and the activated convolution until it ends.
    page.hold("projection (q, k, v, gate, beta, alpha)", "[T, (2K + 2V + 2n)/tp]", projected, "up", "proj", _DELTA)
    page.keep("convolution input", "[(2K + V)/tp, T]", tokens * mixed * element, "up", "up", _DELTA)
    padded = (local.seq + delta.conv - 1) * local.batch
    page.keep("convolution output, padded", "[(2K + V)/tp, T + 3]", padded * mixed * element, "up", "up", _CONV)
    page.hold("convolution output, activated", "[(2K + V)/tp, T]", tokens * mixed * element, "up", "proj", _DELTA)
    page.keep("queries and keys, normed", "2 x [T, K/tp]", 2 * tokens * keys * element, "up", "up", _L2NORM)
    statistics = 2 * tokens * (delta.key_heads // tp) * STAT
    page.keep("queries' and keys' norms' statistics", "2 x [T, n]", statistics, "up", "up", _L2NORM)
    if heads * tp > delta.key_heads:
        page.keep("queries and keys, repeated", "2 x [T, n/tp, k]", 2 * tokens * repeated * element, "up", "proj",
                  _RULE)  # fmt: skip
    page.keep("values", "[T, V/tp]", tokens * values * element, "up", "proj", _RULE)
    page.keep("gate", "[T, V/tp]", tokens * values * element, "up", "proj", _GATED)
    page.hold("decay's logits", "[T, n/tp]", tokens * heads * element, "up", "proj", _DELTA)
    page.keep("decay: softplus, what goes into it, sums in chunks", "3 x [T, n/tp]", 3 * tokens * heads * STAT, "up",
              "core", _RULE)  # fmt: skip
    page.keep("beta", "[T, n/tp]", tokens * heads * element, "up", "core", _RULE)
    page.hold("decay", "[T, n/tp]", tokens * heads * STAT, "up", "proj", _DELTA)
    page.keep("chunks' triangular inverse", "[T, n/tp, 64]", tokens * heads * _CHUNK * element, "core", "core", _RULE)
    # w, u, new values and the states at the chunks' beginnings are made again in backward.
    page.hold("rule's keys and values by chunk (w, u, v_new)", "[T, n/tp, k + 2v]",
              tokens * (repeated + 2 * values) * element, "core", "core", _RULE)  # fmt: skip
    states = tokens // _CHUNK * heads * delta.key_dim * delta.value_dim * element
    page.hold("rule's states", "[T/64, n/tp, k, v]", states, "core", "core", _RULE)
    page.keep("rule's output", "[T, V/tp]", tokens * values * element, "core", "proj", _GATED)
    page.keep("gated norm's statistic", "[T, n/tp]", tokens * heads * STAT, "proj", "proj", _GATED)
    page.keep("rule's output, normed", "[T, V/tp]", tokens * values * element, "proj", "proj", _GATED,
              ("gdn_norm_out",))  # fmt: skip
    page.keep("gated norm output", "[T, V/tp]", page.linear_input(tokens * values), "proj", "proj", _LINEAR,
              ("gdn_norm_out",))  # fmt: skip
    page.hold("projection output", "[t, h]", page.stream, "proj", "add", _DELTA)
    # chunk_gated_delta_rule_bwd, as prepare_wy_repr_bwd ends, holds w, dq, dk twice and dw; the output's gradient, u,
    # v_new and dv twice; and the states and their gradients. What the gated norm read is gone by then.
    made = tokens * 5 * (repeated + values) * element + 2 * states
    freed = tokens * (4 * values * element + heads * STAT)
    page.moment("backward of the rule", made, freed, mixer=True)
