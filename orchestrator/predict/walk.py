"""A micro-batch through one model chunk: what forward leaves, and how high forward, replay and backward rise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from orchestrator.predict import job as settings
from orchestrator.predict.ends import output_ledger
from orchestrator.predict.job import LayerKind, Local, Numerics, Recompute, Shapes
from orchestrator.predict.layers import layer_ledger
from orchestrator.predict.ledger import FULL, LayerMemory, Ledger, layer_memory
from orchestrator.predict.mtp import entry_ledger, exit_ledger, join_ledger
from orchestrator.predict.page import Page
from orchestrator.predict.pipeline import Chunk

_WHOLE = frozenset({FULL})
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Walk:
    """Bytes of one micro-batch in one chunk on one rank, beyond what is alive without it."""

    kept: int
    """What forward leaves for backward."""
    forward: int
    """Most at any point of a forward, with what the backward before it left lingering."""
    replay: int
    """Most in a replay; 0 where nothing is replayed."""
    backward: int
    """Most outside replays, the output layer included."""
    lingers: int
    """What a backward leaves until the next forward."""
    persistent: int
    """What the first forward leaves for good."""
    ready: int = 0
    """Most where backward has made a weight's gradient, and a bucket of gradients may be reduced."""


@dataclass(frozen=True)
class _Step:
    """One layer, or one group of layers that full recompute checkpoints together."""

    kept: int
    forward: int
    replay: int | None
    backward: int
    lingers: int
    shares_gradient: bool
    ready: int | None = None


def active_labels(recompute: Recompute) -> frozenset[str]:
    """The labels that selective recompute has in force."""
    return recompute.modules if recompute.granularity == settings.SELECTIVE else _NOTHING


def ledgers_of(chunk: Chunk, shapes: Shapes, local: Local, numerics: Numerics) -> list[Ledger]:
    """The ledgers of a chunk's layers, in order; layers of one kind share theirs."""
    by_kind = {kind: layer_ledger(kind, shapes, local, numerics) for kind in set(chunk.layers)}
    return [by_kind[kind] for kind in chunk.layers]


def groups_of(layers: int, recompute: Recompute) -> list[tuple[int, int, bool]]:
    """Layers of a chunk as (start, end, checkpointed): alone, or as full recompute groups them.

    As `_checkpointed_forward` (transformer/transformer_block.py): uniform checkpoints groups of `num_layers`, block
    the first `num_layers` one by one.
    """
    if recompute.granularity != settings.FULL:
        return [(index, index + 1, False) for index in range(layers)]
    if recompute.method == settings.BLOCK:
        return [(index, index + 1, index < (recompute.num_layers or 0)) for index in range(layers)]
    number = max(1, recompute.num_layers or 1)
    return [(start, min(layers, start + number), True) for start in range(0, layers, number)]


@lru_cache(maxsize=4096)
def walk(chunk: Chunk, shapes: Shapes, local: Local, numerics: Numerics, recompute: Recompute, again: bool) -> Walk:
    """One micro-batch. `again`: a backward came before, so what lingers from it is there as forward begins."""
    ledgers = ledgers_of(chunk, shapes, local, numerics)
    active = active_labels(recompute)
    alone = {ledger: _single(layer_memory(ledger, active)) for ledger in set(ledgers)}
    together: dict[tuple[Ledger, ...], _Step] = {}
    steps = []
    for start, end, checkpointed in groups_of(len(ledgers), recompute):
        if not checkpointed:
            steps.append(alone[ledgers[start]])
            continue
        members = tuple(ledgers[start:end])
        if members not in together:
            together[members] = _group(members)
        steps.append(together[members])
    depths = len(chunk.mtp)
    if chunk.norm and shapes.mtp_layers:
        steps.append(_single(layer_memory(exit_ledger(shapes, local, numerics), _NOTHING)))
    predicting = [_depth(kind, shapes, local, numerics, recompute) for kind in chunk.mtp]
    stream = local.shard * shapes.hidden * numerics.weight
    # The block's list holds every depth's hidden states; norms that copy their input do not keep them beside.
    listed = stream if Page(shapes, local, numerics).norm_copies and recompute.granularity != settings.FULL else 0
    beside = [0] * len(steps)
    for depth, inside in enumerate(predicting):
        beside += [listed * (depth + (index > 0)) for index in range(len(inside))]
    forward = steps + [step for inside in predicting for step in inside]
    lingers = sum(step.lingers for step in forward)
    live, high, left = 0, 0, lingers if again else 0
    for step, more in zip(forward, beside, strict=True):
        left -= step.lingers if again else 0
        high = max(high, live + step.forward + left + more)
        live += step.kept
    every = [*ledgers, *(layer_ledger(kind, shapes, local, numerics) for kind in chunk.mtp)]
    persistent = sum(ledger.persistent for ledger in every)
    joined = 0
    if depths or (chunk.output and shapes.mtp_layers):
        # An output layer on a stage of its own receives what another stage has concatenated.
        join = layer_memory(join_ledger(shapes, local, numerics, shapes.mtp_layers), _NOTHING)
        high = max(high, live + join.forward + listed * depths)
        joined = join.kept
        live += joined
    ledger = output_ledger(shapes, local, numerics, shapes.mtp_layers)
    output = layer_memory(ledger, _NOTHING) if chunk.output else None
    if output is not None:
        high = max(high, live + output.forward)
        live += output.kept
    vocabulary = _vocabulary(chunk, shapes, local, numerics)
    replay, backward, ready = _back(steps, predicting, live, stream, output, joined, vocabulary)
    return Walk(live, high, replay, backward, lingers, persistent, ready)


def _depth(
    kind: LayerKind, shapes: Shapes, local: Local, numerics: Numerics, recompute: Recompute
) -> tuple[_Step, ...]:
    """One depth of multi-token prediction. Full recompute checkpoints it whole, where its method is uniform, and not at
    all else (MultiTokenPredictionLayer._checkpointed_forward); labels act in the layer inside it alone."""
    parts = (
        entry_ledger(kind, shapes, local, numerics),
        layer_ledger(kind, shapes, local, numerics),
        exit_ledger(shapes, local, numerics),
    )
    if recompute.granularity == settings.FULL and recompute.method == settings.UNIFORM:
        return (_group(parts),)
    active = active_labels(recompute)
    return tuple(_single(layer_memory(part, active)) for part in parts)


@dataclass(frozen=True)
class _Vocabulary:
    """Gradients of a weight over the whole vocabulary, in bytes: autograd adds up those of all its uses in a
    micro-batch before AccumulateGrad takes the sum, so one waits from the first use that backward comes to until the
    last."""

    embedding: int
    """That of an embedding, which is made whole (torch embedding_dense_backward)."""
    output: int
    """What waits when the output layer's backward has ended: a gradient of weights that embeddings share."""
    first: bool
    """The decoder's input comes from these embeddings too."""


def _vocabulary(chunk: Chunk, shapes: Shapes, local: Local, numerics: Numerics) -> _Vocabulary:
    numbers = shapes.vocab // local.tp * shapes.hidden
    shared = chunk.output and shapes.tied and chunk.embeds
    waits = Page(shapes, local, numerics).weight_gradient(numbers) if shared else 0
    return _Vocabulary(numbers * numerics.weight, waits, chunk.embedding)


def _back(
    steps: list[_Step],
    predicting: list[tuple[_Step, ...]],
    live: int,
    stream: int,
    output: LayerMemory | None,
    joined: int,
    vocabulary: _Vocabulary,
) -> tuple[int, int, int]:
    replay = ready = waiting = 0
    backward = live + stream
    if output is not None:
        backward = live + output.backward
        if output.ready is not None:
            ready = live + output.ready
        live -= output.kept
        waiting = vocabulary.output
    gradient = stream
    live -= joined
    if joined:
        # The gradient of what the output layer read is one tensor, of which depths get views; that of the decoder's
        # part waits for the first depth's.
        waiting += joined
        gradient = 0

    def step_back(step: _Step) -> None:
        nonlocal live, gradient, replay, backward, ready
        if step.replay is not None:
            replay = max(replay, live + waiting + gradient + step.replay)
        backward = max(backward, live + waiting + gradient + step.backward)
        if step.ready is not None:
            ready = max(ready, live + waiting + gradient + step.ready)
        live += step.lingers - step.kept
        gradient = 0 if step.shares_gradient else stream

    for depth, inside in reversed(list(enumerate(predicting))):
        for step in reversed(inside):
            step_back(step)
        if not depth:
            waiting -= joined
            gradient = stream
        # Beside the gradient of the rolled tokens' embeddings and that of the hidden states.
        backward = max(backward, live + waiting + 2 * stream + vocabulary.embedding)
        waiting = (joined if depth else 0) + (vocabulary.embedding if depth or vocabulary.first else 0)
    for step in reversed(steps):
        step_back(step)
    if vocabulary.first:
        backward = max(backward, live + waiting + gradient + vocabulary.embedding)
    return replay, backward, ready


def _single(memory: LayerMemory) -> _Step:
    return _Step(memory.kept, memory.forward, memory.replay, memory.backward, memory.lingers, False, memory.ready)


def _group(ledgers: tuple[Ledger, ...]) -> _Step:
    inside = [layer_memory(ledger, _WHOLE) for ledger in ledgers]
    alone = [layer_memory(ledger, _NOTHING) for ledger in ledgers]
    first = inside[0].kept
    before = 0
    replay = backward = 0
    ready: int | None = None
    for whole, each in zip(inside, alone, strict=True):
        replay = max(replay, before + (whole.replay or 0) + whole.kept - first)
        above = before + whole.kept - first
        backward = max(backward, above + whole.backward)
        if whole.ready is not None:
            ready = max(ready or 0, above + whole.ready)
        before += each.kept
    forward = max(memory.forward + (first if index else 0) for index, memory in enumerate(inside))
    # Inside a group, only the first layer's input is a leaf that lingers.
    lingers = inside[0].lingers
    return _Step(first, forward, replay, max(replay, backward), lingers, lingers > 0, ready)
