"""Which layers each pipeline rank holds, and how many micro-batches of each are between forward and backward."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from orchestrator.predict.job import LayerKind, Layout, Shapes
from orchestrator.predict.problem import CannotRunError


@dataclass(frozen=True)
class Chunk:
    """One model chunk: its layers in order, and the ends that it holds."""

    layers: tuple[LayerKind, ...]
    embedding: bool
    output: bool
    first_layer: int = 0
    mtp: tuple[LayerKind, ...] = ()
    """The layers inside its multi-token prediction, by depth."""
    norm: bool = False
    """It holds the decoder's final norm."""

    @property
    def embeds(self) -> bool:
        """Whether it holds word embeddings: multi-token prediction has them too, a copy where it is not with the first
        layers (models/gpt/gpt_model.py GPTModel.__init__)."""
        return self.embedding or bool(self.mtp)


@lru_cache(maxsize=512)
def chunks_of(shapes: Shapes, layout: Layout) -> tuple[tuple[Chunk, ...], ...]:
    """For each pipeline rank its chunks, by virtual stage.

    As `get_num_layers_to_build` (transformer/transformer_block.py) and `PipelineParallelLayerLayout` divide layers. All
    layers of multi-token prediction are where the layout has them, else on the last stage
    (transformer/multi_token_prediction.py get_mtp_num_layers_to_build). With them, the final norm is where the last
    decoder layer is, else with the output (transformer/transformer_block.py has_final_layernorm_in_this_stage).

    Raises:
        CannotRunError: the layers do not divide so; Megatron Core refuses it too.
    """
    counts = _counts(shapes, layout)
    ranks: list[list[Chunk]] = [[] for _ in range(layout.pp)]
    start = 0
    last = len(counts) - 1
    predicts = _mtp_stage(layout, last)
    normed = max((stage for stage, count in enumerate(counts) if count), default=last) if shapes.mtp_layers else last
    for stage, count in enumerate(counts):
        layers = shapes.layers[start : start + count]
        inside = (_mtp_kind(shapes, layers),) * shapes.mtp_layers if stage == predicts else ()
        ranks[stage % layout.pp].append(Chunk(layers, stage == 0, stage == last, start, inside, stage == normed))
        start += count
    if start != len(shapes.layers):
        raise CannotRunError(f"{len(shapes.layers)} layers do not divide over {len(counts)} pipeline stages")
    return tuple(tuple(chunks) for chunks in ranks)


def _mtp_stage(layout: Layout, last: int) -> int:
    held = [index for index, stage in enumerate(layout.stages or ()) if "mtp" in stage]
    return held[0] if held else last


def _mtp_kind(shapes: Shapes, layers: tuple[LayerKind, ...]) -> LayerKind:
    """The layer inside multi-token prediction: of the kind of its stage's last one (models/gpt/gpt_layer_specs.py
    get_gpt_mtp_block_spec_for_backend). A stage without any takes a layer of experts where the model has them (Megatron
    Bridge, models/gpt_provider.py mtp_block_spec)."""
    if layers:
        # It is in FP8 whatever first_last_layers_bf16 says (MultiTokenPredictionLayer._proj_and_transformer_layer).
        return replace(layers[-1], unquantised=False)
    full = next((kind for kind in reversed(shapes.layers) if kind.mixer in ("mla", "gqa")), shapes.layers[-1])
    return LayerKind(full.mixer, "moe" if shapes.experts.count else "dense")


Mix = tuple[int, ...]
"""How many micro-batches of each chunk a rank holds."""


@dataclass(frozen=True)
class Moments:
    """What a rank holds while it works: the chunk at work, and the mix with the micro-batch it works on.

    Of moments of the same chunk, those are left out that hold no more of any chunk than another.
    """

    forward: tuple[tuple[int, Mix], ...]
    backward: tuple[tuple[int, Mix], ...]
    mixes: tuple[Mix, ...]
    """Every mix that may be the largest."""


@lru_cache(maxsize=4096)
def moments(pp: int, rank: int, chunks: int, microbatches: int) -> Moments:
    """The moments of one step.

    1F1B: the first ranks hold up to `pp` micro-batches. Interleaved: `forward_backward_pipelining_with_interleaving`
    (pipeline_parallel/schedules.py) runs (pp - rank - 1) * 2 + (chunks - 1) * pp forwards before its first backward,
    then a forward and a backward in turn.
    """
    if chunks == 1:
        mix = (min(microbatches, pp - rank),)
        return Moments(((0, mix),), ((0, mix),), (mix,))
    total = microbatches * chunks
    warmup = min(total, (pp - rank - 1) * 2 + (chunks - 1) * pp)
    order = [number % (pp * chunks) // pp for number in range(total)]
    held: Counter[int] = Counter()
    forward: dict[int, set[Mix]] = {}
    backward: dict[int, set[Mix]] = {}
    for number in range(total + warmup):
        if number < total:
            held[order[number]] += 1
            forward.setdefault(order[number], set()).add(_mix(held, chunks))
        if number >= warmup:
            chunk = chunks - 1 - order[number - warmup]
            backward.setdefault(chunk, set()).add(_mix(held, chunks))
            held[chunk] -= 1
    mixes = _largest({mix for found in (*forward.values(), *backward.values()) for mix in found})
    return Moments(_by_chunk(forward), _by_chunk(backward), mixes)


def _mix(held: Counter[int], chunks: int) -> Mix:
    return tuple(held[chunk] for chunk in range(chunks))


def _by_chunk(found: dict[int, set[Mix]]) -> tuple[tuple[int, Mix], ...]:
    return tuple((chunk, mix) for chunk in sorted(found) for mix in _largest(found[chunk]))


def _largest(mixes: set[Mix]) -> tuple[Mix, ...]:
    return tuple(sorted(mix for mix in mixes if not any(_within(mix, other) for other in mixes)))


def _within(mix: Mix, other: Mix) -> bool:
    return mix != other and all(here <= there for here, there in zip(mix, other, strict=True))


def _counts(shapes: Shapes, layout: Layout) -> list[int]:
    total, pp = len(shapes.layers), layout.pp
    if layout.stages is not None:
        return [sum(word in ("decoder", "encoder") for word in stage) for stage in layout.stages]
    if layout.first_stage_layers is not None or layout.last_stage_layers is not None:
        per_rank = _uneven(total, layout)
    else:
        padded = total + layout.count_embedding + layout.count_loss
        if padded % pp:
            raise CannotRunError(f"{padded} layers do not divide over {pp} pipeline stages")
        per_rank = [padded // pp] * pp
    chunks = layout.chunks
    if any(count % chunks for count in per_rank):
        raise CannotRunError(f"{per_rank} layers of the pipeline ranks do not divide over {chunks} virtual stages")
    counts = [per_rank[stage % pp] // chunks for stage in range(pp * chunks)]
    counts[0] -= layout.count_embedding
    counts[-1] -= layout.count_loss
    return counts


def _uneven(total: int, layout: Layout) -> list[int]:
    first, last = layout.first_stage_layers, layout.last_stage_layers
    left = layout.pp - (first is not None) - (last is not None)
    rest = total - (first or 0) - (last or 0)
    if left and rest % left:
        raise CannotRunError(f"{rest} layers do not divide over the {left} pipeline stages that are left")
    middle = rest // left if left else 0
    per_rank = [middle] * layout.pp
    if first is not None:
        per_rank[0] = first
    if last is not None:
        per_rank[-1] = last
    return per_rank
