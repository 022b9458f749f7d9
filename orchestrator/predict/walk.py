"""A micro-batch through one model chunk: what forward leaves, and how high forward, replay and backward rise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from orchestrator.predict import job as settings
from orchestrator.predict.ends import output_ledger
from orchestrator.predict.job import Local, Numerics, Recompute, Shapes
from orchestrator.predict.layers import layer_ledger
from orchestrator.predict.ledger import FULL, LayerMemory, Ledger, layer_memory
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
    stream = local.shard * shapes.hidden * numerics.weight
    lingers = sum(step.lingers for step in steps)
    live, high, left = 0, 0, lingers if again else 0
    for step in steps:
        left -= step.lingers if again else 0
        high = max(high, live + step.forward + left)
        live += step.kept
    persistent = sum(ledger.persistent for ledger in ledgers)
    output = layer_memory(output_ledger(shapes, local, numerics), _NOTHING) if chunk.output else None
    if output is not None:
        high = max(high, live + output.forward)
        live += output.kept
    kept = live
    replay, backward, ready = _back(steps, live, stream, output)
    return Walk(kept, high, replay, backward, lingers, persistent, ready)


def _back(steps: list[_Step], live: int, stream: int, output: LayerMemory | None) -> tuple[int, int, int]:
    replay = ready = 0
    backward = live + stream
    if output is not None:
        backward = live + output.backward
        if output.ready is not None:
            ready = live + output.ready
        live -= output.kept
    gradient = stream
    for step in reversed(steps):
        if step.replay is not None:
            replay = max(replay, live + gradient + step.replay)
        backward = max(backward, live + gradient + step.backward)
        if step.ready is not None:
            ready = max(ready, live + gradient + step.ready)
        live += step.lingers - step.kept
        gradient = 0 if step.shares_gradient else stream
    return replay, backward, ready


def _single(memory: LayerMemory) -> _Step:
    return _Step(memory.kept, memory.forward, memory.replay, memory.backward, memory.lingers, False, memory.ready)


def _group(ledgers: tuple[Ledger, ...]) -> _Step:
    inside = [layer_memory(ledger, _WHOLE) for ledger in ledgers]
    alone = [layer_memory(ledger, _NOTHING) for ledger in ledgers]
    first = inside[0].kept
    before = 0
    replay = backward = 0
    for whole, each in zip(inside, alone, strict=True):
        replay = max(replay, before + (whole.replay or 0) + whole.kept - first)
        before += each.kept
    above = before - alone[-1].kept + inside[-1].kept - first
    backward = above + inside[-1].backward
    ready = None if inside[-1].ready is None else above + inside[-1].ready
    forward = max(memory.forward + (first if index else 0) for index, memory in enumerate(inside))
    # Inside a group, only the first layer's input is a leaf that lingers.
    lingers = inside[0].lingers
    return _Step(first, forward, replay, max(replay, backward), lingers, lingers > 0, ready)
