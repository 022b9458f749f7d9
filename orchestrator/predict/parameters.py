"""How many parameters one rank holds, by layer: those that every data-parallel rank shares, and the experts'."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from orchestrator.predict.job import LayerKind, Layout, Numerics, Shapes

_START = 64
"""Elements to which each parameter's start in a buffer is aligned (_pad_start_of_param_if_needed)."""
_END = 128
"""Elements to which a bucket's end is aligned, with the number of ranks (_pad_end_of_bucket_if_needed)."""


class Weight(int):
    """Numbers of a linear layer's weight, as Transformer Engine builds it: what FP8 quantises. All else stays BF16."""


@dataclass(frozen=True)
class Parameters:
    """Sizes of every parameter tensor of one model chunk on one rank, in numbers."""

    dense: tuple[int, ...] = ()
    """Reduced over data-parallel ranks."""
    expert: tuple[int, ...] = ()
    """Reduced over expert-data-parallel ranks; empty unless experts are spread over ranks (ep > 1)."""
    fp8_dense: tuple[int, ...] = ()
    """Those of the first kind whose weights are FP8 parameters: they have buffers of their own."""
    fp8_expert: tuple[int, ...] = ()
    """Those of the second kind."""
    copied_to_fp8: int = 0
    """Numbers of BF16 weights that are multiplied in FP8, and so have quantised copies."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.dense + self.fp8_dense + self.expert + self.fp8_expert

    @property
    def count(self) -> int:
        return sum(self.sizes)

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(
            self.dense + other.dense,
            self.expert + other.expert,
            self.fp8_dense + other.fp8_dense,
            self.fp8_expert + other.fp8_expert,
            self.copied_to_fp8 + other.copied_to_fp8,
        )


def buffer_size(sizes: Sequence[int], ranks: int, *, distributed: bool, high_busbw: bool = False) -> int:
    """Numbers in a contiguous buffer of these parameters, padding included.

    As `_ParamAndGradBuffer.__init__` (distributed/param_and_grad_buffer.py) without buckets: only with the distributed
    optimizer is there padding. With buckets (`overlap_grad_reduce`) there are at most 128 x ranks more for each.
    """
    if not sizes or not distributed:
        return sum(sizes)
    *later, first = sizes[::-1]
    end = sum(math.ceil(size / _START) * _START for size in later) + first
    divisor = math.lcm(ranks, _END, 2**16) if high_busbw else math.lcm(ranks, _END)
    return math.ceil(end / divisor) * divisor


def largest_shard(sizes: Sequence[int], ranks: int, *, high_busbw: bool = False) -> int:
    """Numbers of real parameters, padding left out, in the fullest rank's shard of such a buffer."""
    if not sizes:
        return 0
    part = buffer_size(sizes, ranks, distributed=True, high_busbw=high_busbw) // ranks
    starts, before = [], [0]
    start = 0
    for size in sizes[::-1]:
        start = math.ceil(start / _START) * _START
        starts.append(start)
        before.append(before[-1] + size)
        start += size

    def real_until(end: int) -> int:
        index = bisect_right(starts, end)
        if not index:
            return 0
        inside = min(end - starts[index - 1], before[index] - before[index - 1])
        return before[index - 1] + inside

    edges = [real_until(rank * part) for rank in range(ranks + 1)]
    return max(later - sooner for sooner, later in pairwise(edges))


@lru_cache(maxsize=1024)
def layer_parameters(kind: LayerKind, shapes: Shapes, layout: Layout, numerics: Numerics) -> Parameters:
    """One layer's parameters on one rank."""
    found = _layer(kind, shapes, layout, numerics.transformer_engine)
    return found if kind.unquantised else _in_formats(found, numerics)


def _in_formats(found: Parameters, numerics: Numerics) -> Parameters:
    if not numerics.fp8:
        return found
    if not numerics.fp8_params:
        return replace(found, copied_to_fp8=sum(size for size in found.sizes if isinstance(size, Weight)))
    return Parameters(
        tuple(size for size in found.dense if not isinstance(size, Weight)),
        tuple(size for size in found.expert if not isinstance(size, Weight)),
        tuple(size for size in found.dense if isinstance(size, Weight)),
        tuple(size for size in found.expert if isinstance(size, Weight)),
    )


def _layer(kind: LayerKind, shapes: Shapes, layout: Layout, transformer_engine: bool) -> Parameters:
    sizes: list[int] = []
    if kind.mixer == "mla":
        sizes += _mla(shapes, layout, transformer_engine)
    elif kind.mixer == "gqa":
        sizes += _gqa(shapes, layout)
    elif kind.mixer == "mamba":
        sizes += _mamba(shapes, layout)
    elif kind.mixer == "gdn":
        sizes += _delta(shapes, layout)
    if kind.mlp == "dense":
        sizes += [*_norm(shapes), *_linear(shapes, shapes.ffn // layout.tp)]
        return Parameters(tuple(sizes))
    if kind.mlp == "moe":
        return Parameters(tuple(sizes)) + _moe(shapes, layout)
    return Parameters(tuple(sizes))


def embedding_parameters(shapes: Shapes, layout: Layout) -> Parameters:
    """Word embeddings, split over the vocabulary."""
    return Parameters((shapes.vocab // layout.tp * shapes.hidden,))


def output_parameters(shapes: Shapes, layout: Layout, *, own_output: bool) -> Parameters:
    """The output layer, unless it shares the embeddings of the first stage on the same rank."""
    return Parameters((shapes.vocab // layout.tp * shapes.hidden,) if own_output else ())


def norm_parameters(shapes: Shapes) -> Parameters:
    """The decoder's final norm."""
    return Parameters(tuple(_norm(shapes)))


def mtp_parameters(kind: LayerKind, shapes: Shapes, layout: Layout, numerics: Numerics) -> Parameters:
    """One depth of multi-token prediction: three norms, the projection of two concatenated streams, which is split by
    its output (eh_proj), and a layer (transformer/multi_token_prediction.py MultiTokenPredictionLayer.__init__)."""
    before = (*_norm(shapes), *_norm(shapes), Weight(2 * shapes.hidden * shapes.hidden // layout.tp))
    inside = layer_parameters(kind, shapes, layout, numerics)
    return _in_formats(Parameters(before), numerics) + inside + norm_parameters(shapes)


def _norm(shapes: Shapes, width: int | None = None) -> list[int]:
    size = shapes.hidden if width is None else width
    return [size] if shapes.rms_norm else [size, size]


def _linear(shapes: Shapes, width: int) -> list[int]:
    wide = width * (2 if shapes.gated else 1)
    bias = ([wide], [shapes.hidden]) if shapes.bias else ([], [])
    return [Weight(wide * shapes.hidden), *bias[0], Weight(width * shapes.hidden), *bias[1]]


def _mla(shapes: Shapes, layout: Layout, transformer_engine: bool) -> list[int]:
    head, hidden = shapes.attention, shapes.hidden
    # Down-projections: whole on each rank with Transformer Engine (TELinear, duplicated), else split by columns.
    split = 1 if transformer_engine else layout.tp
    heads = head.heads // layout.tp
    wide = head.qk_dim + head.rope_dim
    sizes = [*_norm(shapes), Weight(heads * head.v_dim * hidden)]
    if head.q_lora:
        sizes += [
            Weight(head.q_lora * hidden // split),
            Weight(heads * wide * head.q_lora),
            *(_norm(shapes, head.q_lora) if head.qk_norm else ()),
        ]
    else:
        sizes += [Weight(heads * wide * hidden)]
    sizes += [
        Weight((head.kv_lora + head.rope_dim) * hidden // split),
        Weight(heads * (head.qk_dim + head.v_dim) * head.kv_lora),
    ]
    return sizes + (_norm(shapes, head.kv_lora) if head.qk_norm else [])


def _gqa(shapes: Shapes, layout: Layout) -> list[int]:
    head, hidden = shapes.attention, shapes.hidden
    heads, groups = head.heads // layout.tp, max(1, head.groups // layout.tp)
    width = (heads * (2 if head.output_gate else 1) + 2 * groups) * head.head_dim
    sizes = [*_norm(shapes), Weight(heads * head.head_dim * hidden), Weight(width * hidden)]
    if shapes.bias or shapes.qkv_bias:
        sizes.append(width)
    if shapes.bias:
        sizes.append(hidden)
    return sizes + ([*_norm(shapes, head.head_dim)] * 2 if head.qk_norm else [])


def _mamba(shapes: Shapes, layout: Layout) -> list[int]:
    mamba, tp = shapes.mamba, layout.tp
    inner, groups, heads = mamba.inner // tp, max(1, mamba.groups // tp), mamba.heads // tp
    conv = inner + 2 * groups * mamba.state
    projected = 2 * inner + 2 * groups * mamba.state + heads
    return [*_norm(shapes), Weight(projected * shapes.hidden), conv * mamba.conv, conv, heads, heads, heads, inner,
            Weight(inner * shapes.hidden)]  # fmt: skip


def _delta(shapes: Shapes, layout: Layout) -> list[int]:
    delta, tp = shapes.delta, layout.tp
    keys, values = delta.key_dim * delta.key_heads // tp, delta.value_dim * delta.value_heads // tp
    heads = delta.value_heads // tp
    projected = 2 * keys + 2 * values + 2 * heads
    return [*_norm(shapes), Weight(projected * shapes.hidden), (2 * keys + values) * delta.conv, heads, heads,
            *_norm(shapes, delta.value_dim), Weight(values * shapes.hidden)]  # fmt: skip


def _moe(shapes: Shapes, layout: Layout) -> Parameters:
    experts = shapes.experts
    width = experts.ffn // layout.etp
    inside = experts.latent or shapes.hidden
    wide = width * (2 if shapes.gated else 1)
    local = max(1, experts.count // layout.ep)
    each = (Weight(wide * inside),) * local + (Weight(width * inside),) * local
    dense = [*_norm(shapes), experts.count * shapes.hidden]
    if experts.latent:
        dense += [Weight(experts.latent * shapes.hidden)] * 2
    if experts.shared_ffn:
        dense += _linear(shapes, experts.shared_ffn // layout.tp)
        if experts.shared_gate:
            dense.append(shapes.hidden)
    if layout.ep > 1:
        return Parameters(tuple(dense), each)
    return Parameters((*dense, *each))
