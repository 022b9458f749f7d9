"""What a step computes and communicates, what recompute computes again, and how long that takes by a measured control.

Multiplications and additions are counted as two operations, as Megatron's own throughput does. A model of time this
simple says how candidates of one match key compare; how fast a GPU is comes from the control alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from orchestrator.predict import job as settings
from orchestrator.predict.job import Job, LayerKind, Layout, Local, Shapes, local_sizes
from orchestrator.predict.ledger import DISCARDS, REGIONS
from orchestrator.predict.pipeline import Chunk, chunks_of
from orchestrator.predict.walk import active_labels, groups_of


@dataclass(frozen=True)
class Work:
    """Of one micro-batch on one rank: operations of matrix products, bytes touched beside them, and bytes sent."""

    flops: float = 0.0
    touched: float = 0.0
    sent: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.touched + other.touched, self.sent + other.sent)

    def __mul__(self, times: float) -> Work:
        return Work(self.flops * times, self.touched * times, self.sent * times)


@dataclass(frozen=True)
class Cost:
    """Of one step on the busiest pipeline rank."""

    flops: float
    """Forward and backward, without replays."""
    replayed_flops: float
    replayed_touched: float
    """Bytes read and written by element-wise replays."""
    replayed_sent: float
    """Bytes of collectives that replays repeat."""
    replays: int
    """Boundaries that are replayed in a step."""
    exchanges: int = 0
    """Layers times micro-batches whose experts other ranks' tokens come to."""

    @property
    def replayed_share(self) -> float:
        """Replayed operations over those of a step without recompute."""
        return self.replayed_flops / self.flops if self.flops else 0.0


@dataclass(frozen=True)
class Speed:
    """How fast a device is, by a measured control or by a data sheet."""

    flops: float
    """Operations a second of a large matrix product."""
    memory: float
    """Bytes a second."""
    network: float
    """Bytes a second of a rank's collectives."""
    boundary: float = 4e-4
    """Seconds that one replayed boundary costs beside its work: reading the generators' states waits for the device
    (tensor_parallel/random.py, _get_all_rng_states). From the guide's table for Moonlight: `moe_act` added 9.08 ms for
    26 boundaries that compute next to nothing."""


@dataclass(frozen=True)
class StepTime:
    """A predicted step, seconds, and between what it may lie."""

    expected: float
    low: float
    high: float


H100 = Speed(flops=6.5e14, memory=2.5e12, network=2e11)
"""What large products and copies reach on an H100 in bfloat16."""

_OVERALL = 0.6
"""A step's mean speed over that of its products, where no control says it."""
_EXCHANGE = 0.0141
"""Seconds, forward and backward, that a layer of experts spread over ranks costs a micro-batch beside its products,
where no control says it: the guide's Moonlight on 8 H100 took 457 ms for one micro-batch and 26 such layers, of which
products take 91 ms (77.5 TFLOP/s a GPU). Its Nemotron 3 Nano (657 ms, 23 such layers) took 14% less than this says."""
_REPLAY_RANGE = (0.4, 2.5)
"""What a replay may take over its prediction. On an H200, `moe` took 0.5 times, `mla_up_proj` 1.6 times of it."""


def cost_of(job: Job) -> Cost:
    """What a step costs on the pipeline rank with most work."""
    return max((_rank_cost(job, chunks) for chunks in chunks_of(job.shapes, job.layout)), key=lambda cost: cost.flops)


def speed_from_control(job: Job, step_seconds: float, guess: Speed = H100) -> Speed:
    """The speed of a device on which a control took so long: at least the control's mean, which also holds everything
    that is no product."""
    return Speed(max(guess.flops, cost_of(job).flops / step_seconds), guess.memory, guess.network, guess.boundary)


def step_time(job: Job, speed: Speed, control_seconds: float | None = None) -> StepTime:
    """How long a step takes. With a control's time, only what is replayed is added to it."""
    cost = cost_of(job)
    base = cost.flops / (speed.flops * _OVERALL) + cost.exchanges * _EXCHANGE
    if control_seconds is not None:
        base = control_seconds
    again = (
        cost.replayed_flops / speed.flops
        + cost.replayed_touched / speed.memory
        + cost.replayed_sent / speed.network
        + cost.replays * speed.boundary
    )
    low, high = _REPLAY_RANGE
    spread = 0.0 if control_seconds is not None else 0.5 * base
    return StepTime(base + again, base - spread + low * again, base + spread + high * again)


def _rank_cost(job: Job, chunks: tuple[Chunk, ...]) -> Cost:
    local = local_sizes(job)
    forward, again = Work(), Work()
    replays = exchanges = 0
    active = active_labels(job.recompute)
    for chunk in chunks:
        groups = [(chunk.layers[start:end], whole) for start, end, whole in groups_of(len(chunk.layers), job.recompute)]
        # Full recompute replays a depth of multi-token prediction where its method is uniform (_checkpointed_forward).
        again_too = job.recompute.granularity == settings.FULL and job.recompute.method == settings.UNIFORM
        groups += [((kind,), again_too) for kind in chunk.mtp]
        for kinds, checkpointed in groups:
            for kind in kinds:
                parts = layer_work(kind, job.shapes, local, job.layout)
                whole = sum((part for name, part in parts.items() if name not in _SHADOWS), Work())
                forward += whole
                exchanges += kind.mlp == "moe" and job.layout.ep > 1
                if checkpointed:
                    again += whole
                elif job.recompute.granularity == settings.SELECTIVE:
                    part, number = _replayed(parts, active, kind)
                    again += part
                    replays += number
            replays += checkpointed
        # eh_proj makes one stream of two.
        forward += Work(4.0 * local.tokens * job.shapes.hidden**2 / job.layout.tp * len(chunk.mtp))
        if chunk.output:
            logits = 1 + job.shapes.mtp_layers
            forward += Work(2.0 * local.tokens * job.shapes.hidden * job.shapes.vocab / job.layout.tp * logits)
    number = job.microbatches
    return Cost(
        3 * forward.flops * number,
        again.flops * number,
        again.touched * number,
        again.sent * number,
        replays * number,
        exchanges * number,
    )


_SHADOWS = DISCARDS
"""Parts that are counted in another part already, and named apart only because a label replays them."""


def _replayed(parts: dict[str, Work], active: frozenset[str], kind: LayerKind) -> tuple[Work, int]:
    labels = set(active)
    if "moe" in labels and kind.mlp == "moe":
        labels -= {"shared_experts"}
    total, number = Work(), 0
    for label in sorted(labels & (REGIONS | DISCARDS)):
        names = ("router", "moe", "shared_experts") if label == "moe" else (label,)
        found = [parts[name] for name in names if name in parts]
        if found:
            total += sum(found, Work())
            # An input norm and a pre-MLP norm are two boundaries.
            number += (kind.mixer == "mla") + (kind.mlp == "moe") if label == "layernorm" else 1
    return total, number


@lru_cache(maxsize=1024)
def layer_work(kind: LayerKind, shapes: Shapes, local: Local, layout: Layout) -> dict[str, Work]:
    """One layer's forward, in the parts that labels replay."""
    parts: dict[str, Work] = {}
    tokens, hidden, tp, element = local.tokens, shapes.hidden, layout.tp, 2
    stream = local.shard * hidden * element
    gathered = 2 * stream * (tp - 1) if layout.sequence_parallel else 2 * stream * (tp > 1)
    norms = 2 * stream
    if kind.mixer in ("mla", "gqa"):
        parts |= _attention(kind, shapes, local, layout)
    elif kind.mixer == "mamba":
        mamba = shapes.mamba
        inner, state = mamba.inner / tp, mamba.state
        projected = 2 * inner + 2 * mamba.groups * state / tp + mamba.heads / tp
        parts["mixer"] = Work(2.0 * tokens * (hidden * (projected + inner) + 3 * inner * state), 4 * stream, gathered)
    elif kind.mixer == "gdn":
        delta = shapes.delta
        keys, values = delta.key_dim * delta.key_heads / tp, delta.value_dim * delta.value_heads / tp
        rule = 4 * values * delta.key_dim
        parts["mixer"] = Work(2.0 * tokens * (hidden * (2 * keys + 3 * values) + rule), 6 * stream, gathered)
        parts["gdn_norm_out"] = Work(0, 3 * tokens * values * element)
    if kind.mixer == "mla":
        parts["layernorm"] = Work(0, norms)
    wide = 3 if shapes.gated else 2
    if kind.mlp == "dense":
        parts["mlp"] = Work(2.0 * tokens * hidden * shapes.ffn / tp * wide, 3 * stream, gathered)
    elif kind.mlp == "moe":
        experts = shapes.experts
        sent = local.shard * experts.topk
        inside = experts.latent or hidden
        parts["router"] = Work(2.0 * local.shard * hidden * experts.count, 2 * stream)
        exchanged = 2 * sent * inside * element * (layout.ep - 1) / layout.ep
        parts["moe"] = Work(2.0 * sent * inside * experts.ffn * wide, 6 * sent * inside * element, exchanged)
        if experts.shared_ffn:
            parts["shared_experts"] = Work(2.0 * tokens * hidden * experts.shared_ffn / tp * wide, stream, gathered)
        parts["moe_act"] = Work(0, sent * experts.ffn / layout.etp * layout.etp * (wide) * element)
        parts["layernorm"] = parts.get("layernorm", Work()) + Work(0, norms)
    return parts


def _attention(kind: LayerKind, shapes: Shapes, local: Local, layout: Layout) -> dict[str, Work]:
    head, tokens, hidden, tp = shapes.attention, local.tokens, shapes.hidden, layout.tp
    heads, element = head.heads / tp, 2
    length = local.seq * local.cp
    ring = 2 * local.tokens * heads * head.head_dim * element * (local.cp - 1)
    if kind.mixer == "gqa":
        width = (head.heads + 2 * head.groups) / tp * head.head_dim
        scores = heads * 2 * head.head_dim
        products = hidden * (width + heads * head.head_dim)
        return {
            "attention": Work(2.0 * tokens * products, 4 * tokens * width * element),
            # Half of a causal square.
            "core_attn": Work(tokens * length * scores, 2 * tokens * width * element, ring),
        }
    wide = head.qk_dim + head.rope_dim
    queries = (head.q_lora if head.q_lora else hidden) * heads * wide
    expanded = heads * (head.qk_dim + head.v_dim) * head.kv_lora
    down = hidden * (head.kv_lora + head.rope_dim + (head.q_lora or 0))
    made = tokens * heads * (2 * wide + head.v_dim) * element
    return {
        "attention": Work(2.0 * tokens * (queries + expanded + down + heads * head.v_dim * hidden), 3 * made),
        "core_attn": Work(tokens * length * heads * (wide + head.v_dim), made, ring),
        # Without fusion the rotation passes over its part many times; queries, keys and values are copied once more.
        "mla_up_proj": Work(2.0 * tokens * (queries + expanded), (4 if head.rope_fused else 9) * made),
    }
