"""The ledger: one object for each tensor that a layer makes in its forward, and how long it lives.

A tensor that backward reads is *kept*: it lives from the operation that makes it to the layer's backward, unless a
recompute label in force drops it. Every other one is a temporary that lives `until` an operation of the same forward,
the last one at which somebody (autograd aside) still holds it. A forward without gradients, which is what a region
inside a checkpoint runs, keeps nothing: there each tensor lives until `until`. So one ledger says what forward keeps,
how high it rises while it runs, what each label saves and what a replay needs for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

FULL = "full"
"""Not a label of Megatron Core: stands for a layer inside a group that full recompute checkpoints."""

DISCARDS = frozenset({"layernorm", "mla_up_proj", "moe_act", "gdn_norm_out"})
"""Labels whose boundary frees its *output* (CheckpointWithoutOutput, tensor_parallel/random.py)."""

REGIONS = frozenset({"core_attn", "mlp", "moe", "shared_experts", FULL})
"""Labels whose boundary runs a region without gradients and keeps only the region's input."""


_IN_MLP = frozenset({"mlp", "moe", "shared_experts"})


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of one layer and one micro-batch, on one rank."""

    name: str
    shape: str
    """The formula of its size, with its sharding: T is s*b/cp tokens, t the residual stream's, t = T/tp under SP."""
    bytes: int
    made: str
    """The operation that makes it."""
    until: str
    """The last operation at which it is held if backward does not keep it."""
    source: str
    """The function that makes or saves it: Megatron Core 0.16.1, or TE for Transformer Engine 2.11."""
    kept: bool = False
    labels: frozenset[str] = frozenset()
    """Labels that drop it; for a temporary, the regions it belongs to."""
    instead: frozenset[str] = frozenset()
    """Labels that keep it in place of what they drop."""

    def is_kept(self, active: frozenset[str]) -> bool:
        """Whether forward leaves it for backward, under the labels in force."""
        if self.instead and self.instead & active:
            return not (self.labels & active)
        return self.kept and not (self.labels & active)


@dataclass(frozen=True, eq=False)
class Moment:
    """A point of a layer's backward: gradients that live there, and kept tensors already freed. Bytes."""

    name: str
    made: int
    freed: int
    region: frozenset[str] = frozenset()
    copied: int = 0
    """Made beside it where a checkpointed region is replayed: its inputs' gradients, put in order."""
    mixer: bool = False
    """In the mixer's backward, which begins when that of the MLP has ended and freed what it read."""
    ready: bool = False
    """Not within an operation's backward, but behind one that made a weight's gradient: with overlapped reduction, a
    bucket of gradients may be full and be reduced here."""


@dataclass(frozen=True, eq=False)
class Ledger:
    """All tensors of one layer in order, the operations that it runs, and moments of its backward.

    Compared by identity: whoever writes one keeps it, and what is worked out from it is cached.
    """

    operations: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    moments: tuple[Moment, ...] = ()
    lingers: int = 0
    """Bytes that stay alive from a backward to the next forward where the layer ran inside a checkpoint."""
    lingers_with: frozenset[str] = frozenset()
    persistent: int = 0
    """Bytes that stay alive from the first forward on (attributes and caches)."""
    output: int = 0
    """Bytes of a checkpointed region's output: of the residual stream."""


@dataclass(frozen=True)
class LayerMemory:
    """What a layer needs under the labels in force. Bytes of one micro-batch on one rank."""

    kept: int
    forward: int
    """Most bytes alive while its forward runs, its own kept ones included."""
    backward: int
    """Most bytes alive in its backward or in a replay, beyond what forward had kept."""
    replay: int | None
    """Of those, what a replay alone reaches; None where nothing is replayed. Below zero where more of the layer is gone
    by then."""
    lingers: int
    persistent: int
    ready: int | None = None
    """Most bytes where a weight's gradient is ready, beyond what forward had kept; None where the ledger has none."""


def kept_bytes(ledger: Ledger, active: frozenset[str]) -> int:
    """Bytes that forward leaves for backward."""
    return sum(tensor.bytes for tensor in ledger.tensors if tensor.is_kept(active))


def highest(ledger: Ledger, active: frozenset[str], tensors: Iterable[Tensor] | None = None) -> int:
    """Most bytes alive at any operation of a forward with the labels in force."""
    order = _order(ledger.operations)
    change = [0] * (len(order) + 1)
    for tensor in ledger.tensors if tensors is None else tensors:
        change[order[tensor.made]] += tensor.bytes
        if not tensor.is_kept(active):
            change[order[tensor.until] + 1] -= tensor.bytes
    return max(accumulate(change))


@lru_cache(maxsize=4096)
def layer_memory(ledger: Ledger, active: frozenset[str]) -> LayerMemory:
    """What one layer needs under the labels in force (`FULL` among them for a layer that is checkpointed whole)."""
    kept = kept_bytes(ledger, active)
    order = _order(ledger.operations)
    mlp_begins = order.get("mlp_norm", len(order))
    # What the MLP kept is gone when the backward of the mixer begins.
    done = _kept_from(ledger, active, mlp_begins)
    mixer, mlp = _restored(ledger, active)
    replays = ([mixer - done] if mixer else []) + ([mlp] if mlp else [])
    heights = [
        (
            moment.ready,
            moment.made - min(moment.freed + moment.mixer * done, kept) + (mlp if moment.region & _IN_MLP else mixer),
        )
        for moment in ledger.moments
        if not moment.region & active
    ]
    for region in _outermost(active):
        inside = [tensor for tensor in ledger.tensors if region in tensor.labels]
        if not inside:
            continue
        # What norms give back beside the region is alive while it is replayed; what the layer made behind it is gone.
        beside = mlp if region in _IN_MLP else mixer
        beside -= _kept_from(ledger, active, 1 + max(order[tensor.made] for tensor in inside))
        inner = active - {region}
        before = sum(tensor.bytes for tensor in inside if tensor.is_kept(active))
        again = sum(tensor.bytes for tensor in inside if tensor.is_kept(inner)) - before
        replays.append(highest(ledger, inner, inside) - before + beside)
        gone = _kept_from(ledger, inner, mlp_begins) if region == FULL else 0
        heights += [
            # The region's output, which backward began with, is held until it has ended.
            (
                moment.ready,
                again
                + ledger.output
                + moment.made
                + moment.copied
                - min(moment.freed + moment.mixer * gone, again)
                + beside,
            )
            for moment in ledger.moments
            if region in moment.region
        ]
    replay = max(replays, default=None)
    return LayerMemory(
        kept=kept,
        forward=highest(ledger, active),
        backward=max([*replays, *(height for ready, height in heights if not ready)], default=0),
        replay=replay,
        lingers=ledger.lingers if active & ledger.lingers_with else 0,
        persistent=ledger.persistent,
        ready=max((height for ready, height in heights if ready), default=None),
    )


def _kept_from(ledger: Ledger, active: frozenset[str], operation: int) -> int:
    """Bytes kept of what is made from this operation on."""
    order = _order(ledger.operations)
    return sum(tensor.bytes for tensor in ledger.tensors if order[tensor.made] >= operation and tensor.is_kept(active))


def _outermost(active: frozenset[str]) -> list[str]:
    """The regions that are replayed by themselves: the others lie within one of them."""
    if FULL in active:
        return [FULL]
    return sorted(active & REGIONS - ({"shared_experts"} if "moe" in active else set()))


def _restored(ledger: Ledger, active: frozenset[str]) -> tuple[int, int]:
    """Bytes that come back as the backward of the mixer and of the MLP begins: outputs that were freed.

    Twice their size: the freed storage is filled again from a second one, which the replayed graph holds
    (tensor_parallel/random.py, CheckpointWithoutOutput._recompute).
    """
    order = _order(ledger.operations)
    begin = order.get("mlp_norm", len(order))
    found = [0, 0]
    for tensor in ledger.tensors:
        if tensor.kept and tensor.labels & active & DISCARDS and not tensor.labels & active & REGIONS:
            # What ends with the operation that makes it is no output: it is saved anew while the output is made.
            times = 2 if tensor.until != tensor.made else 1
            found[order[tensor.made] >= begin] += times * tensor.bytes
    return found[0], found[1]


@lru_cache(maxsize=256)
def _order(operations: Sequence[str]) -> dict[str, int]:
    return {name: index for index, name in enumerate(operations)}
