"""What recompute saves of the default model (conf/model/tiny_mla_moe.yaml, with grouped experts), by hand.

Bytes held when the last forward of a step ends, summed over the ranks of one pipeline stage: experts of one rank get
the tokens that another's do not, and together they get all. Sizes are in elements; a float has four bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FLOAT = 4
HIDDEN, HEADS, DENSE_WIDTH, EXPERT_WIDTH, SHARED_WIDTH, CHOSEN = 128, 4, 512, 128, 256, 2
QUERY, ROTARY, VALUE, LATENT = 32, 16, 32, 32
DENSE, MOE = "dense", "moe"
LAYERS = (DENSE, MOE, MOE, MOE)
FULL = "full"
"""Stands for a whole layer beside the labels that stand for parts of one."""


def gated(tokens: int, width: int) -> int:
    """Elements that a gated MLP keeps: both halves of its first product, the activation of one, the other with its
    offset added, and the product of the two (megatron.core.transformer.mlp)."""
    return tokens * width * 5


@dataclass(frozen=True)
class Spread:
    """How a trial is spread, as far as it matters here."""

    tp: int
    pp: int
    vpp: int
    etp: int
    replicas: int
    tokens: int
    """Of a microbatch; one sequence."""
    microbatches: int
    """Of one pipeline in one step."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> Spread:
        layout, training = config["parallelism"], config["training"]
        replicas = layout["world_size"] // (layout["tp"] * layout["pp"])
        return cls(
            tp=layout["tp"],
            pp=layout["pp"],
            vpp=layout["vpp"] or 1,
            etp=layout["tp"] if layout["etp"] is None else layout["etp"],
            replicas=replicas,
            tokens=training["seq_length"] * training["micro_batch_size"],
            microbatches=training["global_batch_size"] // (training["micro_batch_size"] * replicas),
        )

    def ranks_of(self, stage: int) -> range:
        """The ranks of a pipeline stage: its replicas, and those that share its matrices."""
        each = self.tp * self.replicas
        return range(stage * each, (stage + 1) * each)

    def layers_of(self, stage: int, chunk: int) -> tuple[str, ...]:
        """The layers of a pipeline stage's model chunk."""
        each = len(LAYERS) // (self.pp * self.vpp)
        start = (chunk * self.pp + stage) * each
        return LAYERS[start : start + each]


def saved(config: dict[str, Any], stage: int, core: str) -> int:
    """Bytes that the ranks of a pipeline stage need not hold with the recompute of `config`, all together, by Megatron
    Core of version `core`."""
    spread = Spread.of(config)
    # Until then `mla_up_proj` replays the latent's norm too (MLASelfAttention.qkv_up_proj_and_rope_apply).
    norm_too = [int(part) for part in core.split(".")[:2]] < [0, 16]
    elements = 0
    for chunk, state in enumerate(chunks_at_last_forward(spread, stage)):
        for kind, labels in _recomputed(config, spread.layers_of(stage, chunk)):
            elements += state.in_flight * _layer(labels, kind, spread)
            if norm_too and "mla_up_proj" in labels:
                elements += state.in_flight * _norm(spread.tokens, LATENT)
            if kind == MOE and labels & {"moe", FULL} and state.replayed_last:
                elements -= _left_by_a_replay(spread)
    return FLOAT * spread.replicas * elements


def replays(config: dict[str, Any], stage: int) -> int:
    """Replayed forwards on each rank of a pipeline stage in one step."""
    spread = Spread.of(config)
    return spread.microbatches * sum(
        _visits(label, kind)
        for chunk in range(spread.vpp)
        for kind, labels in _recomputed(config, spread.layers_of(stage, chunk))
        for label in labels
    )


@dataclass(frozen=True)
class ChunkState:
    """A model chunk when the last forward ends."""

    in_flight: int
    """Microbatches whose backward is still to come."""
    replayed_last: bool
    """A backward was what it did last."""


def chunks_at_last_forward(spread: Spread, stage: int) -> list[ChunkState]:
    """The model chunks of a pipeline stage.

    1F1B and its interleaved form (megatron.core.pipeline_parallel.schedules): some forwards to warm up, then one
    backward after every forward.
    """
    total = spread.microbatches * spread.vpp
    warm_up = spread.pp - stage - 1
    if spread.vpp > 1:
        warm_up = 2 * warm_up + (spread.vpp - 1) * spread.pp
    in_flight, replayed = [0] * spread.vpp, [False] * spread.vpp
    for number in range(total):
        chunk = _chunk(number, spread)
        in_flight[chunk] += 1
        replayed[chunk] = False
        if warm_up <= number < total - 1:
            chunk = spread.vpp - 1 - _chunk(number - warm_up, spread)
            in_flight[chunk] -= 1
            replayed[chunk] = True
    return [ChunkState(*pair) for pair in zip(in_flight, replayed, strict=True)]


def _chunk(number: int, spread: Spread) -> int:
    return number % (spread.pp * spread.vpp) // spread.pp


def _recomputed(config: dict[str, Any], layers: tuple[str, ...]) -> Iterator[tuple[str, frozenset[str]]]:
    """Each layer of a model chunk, and what is recomputed of it."""
    for number, kind in enumerate(layers):
        if config["recompute_granularity"] != "full":
            yield kind, frozenset(config["recompute_modules"])
        elif config["recompute_method"] == "uniform" or number < config["recompute_num_layers"]:
            yield kind, frozenset({FULL})
        else:
            yield kind, frozenset()


def _visits(label: str, kind: str) -> int:
    """How often a layer's forward enters what the label names."""
    if label in ("moe", "moe_act", "shared_experts"):
        return int(kind == MOE)
    return int(kind == DENSE) if label == "mlp" else 2 if label == "layernorm" else 1


def _layer(labels: frozenset[str], kind: str, spread: Spread) -> int:
    """Elements of one layer and microbatch, over the tensor-parallel ranks of one replica."""
    tokens, routed, tp = spread.tokens, CHOSEN * spread.tokens, spread.tp
    shared = gated(tokens, SHARED_WIDTH)
    # Tokens sorted by expert, whole on each rank that shares one; weighting keeps one more.
    experts = spread.etp * routed * HIDDEN + gated(routed, EXPERT_WIDTH) + routed * EXPERT_WIDTH
    scores = HEADS * tokens * tokens
    # Query, key and value; each rank has its own cosines and sines.
    up_projected = tokens * HEADS * (2 * (QUERY + ROTARY) + VALUE) + tp * 4 * tokens * ROTARY
    # The result, what it scales, and one factor for each token; twice in a layer.
    norms = 2 * _norm(tokens, HIDDEN)
    # What no label covers: the latent and its norm, what attention returns, and the sum with what came in. With tensor
    # parallelism only a rank's share of the latent is kept, without the rotary key beside it.
    latent = tokens * (LATENT + (ROTARY if tp == 1 else 0)) + _norm(tokens, LATENT)
    between = latent + tokens * HEADS * VALUE + tokens * HIDDEN
    mlp = gated(tokens, DENSE_WIDTH) if kind == DENSE else shared + experts
    sizes = {
        "core_attn": scores,
        # With tensor parallelism its checkpoint keeps all that was gathered, for the rotary key.
        "mla_up_proj": up_projected - (tp * tokens * (LATENT + ROTARY) if tp > 1 else 0),
        "layernorm": norms,
        "mlp": mlp if kind == DENSE else 0,
        "moe": mlp if kind == MOE else 0,
        "moe_act": 4 * routed * EXPERT_WIDTH if kind == MOE and "moe" not in labels else 0,
        "shared_experts": shared if kind == MOE and "moe" not in labels else 0,
        FULL: scores + up_projected + norms + between + mlp,
    }
    return sum(sizes[label] for label in labels)


def _norm(tokens: int, width: int) -> int:
    return 2 * tokens * width + tokens


def _left_by_a_replay(spread: Spread) -> int:
    """A dispatcher holds on to the routing of its last pass (MoEAlltoAllTokenDispatcher.probs). After a replay that
    leads to the checkpoint's input and its gradient, over the tensor-parallel ranks of one replica."""
    return 2 * spread.tokens * HIDDEN
