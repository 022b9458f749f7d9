"""What parameters cost beside themselves: gradient buffers, main parameters, optimizer state, and a step's temporaries.

Checked against Megatron Core 0.16.1 (optimizer/distrib_optimizer.py, distributed/param_and_grad_buffer.py) and
Transformer Engine 2.11 and 2.17.1 (optimizers/fused_adam.py).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.predict.job import Layout, Numerics
from orchestrator.predict.parameters import Parameters, buffer_size, largest_shard

COPIES_ASSUMED = (
    "which Transformer Engine runs is not said: one before 2.14 is taken, as Megatron Bridge 0.3.1 asks for, whose "
    "optimizer step copies all moments to float32; name it to predict with --transformer-engine VERSION, or pin a "
    "Bridge whose lock file is known, as revisions=guide_2026_08 does"
)
_FLOAT = 4
_MIB = 2**20


@dataclass(frozen=True)
class Unsplit:
    """Bytes that stay with allocations of a step if every one of them gets a fresh segment (see `unsplit`)."""

    gradients: int = 0
    state: int = 0
    temporaries: int = 0


@dataclass(frozen=True)
class ModelState:
    """Bytes on one rank that do not depend on the batch."""

    parameters: int
    """How many numbers the rank's parameters have, padding left out."""
    weights: int
    gradients: int
    """The buffer that micro-batches add to."""
    main_params: int
    """Made with the optimizer."""
    state: int
    """Made in the first step: moments, and masters where the optimizer itself keeps them."""
    main_gradients: int
    """Copies of the gradient's shard in float32, from the step to the next `zero_grad`."""
    temporaries: int
    """Of one step, beyond what stays."""
    written: int
    """Beside them while a step's copies of the moments are written back."""
    build_peak: int
    """Most bytes while model and optimizer are built."""
    largest: int
    """The largest parameter, in numbers."""
    unsplit: Unsplit
    """What torch's allocator may count beyond the step's own allocations."""

    @property
    def built(self) -> int:
        """Alive once the optimizer is built."""
        return self.weights + self.gradients + self.main_params


@lru_cache(maxsize=1024)
def model_state(chunks: tuple[Parameters, ...], layout: Layout, numerics: Numerics) -> ModelState:
    """The state of a rank's model chunks."""
    dense, expert = _buffers(chunks, layout, numerics)
    total = dense + expert
    count = sum(chunk.count for chunk in chunks)
    sharded = numerics.distributed_optimizer
    dense_shard, expert_shard = _shards(chunks, layout, numerics)
    shard = dense_shard + expert_shard
    # Experts that are spread over ranks have an optimizer of their own (optimizer/__init__.py, ChainedOptimizer), and
    # optimizers step one after the other.
    stepped = max(dense_shard, expert_shard)
    main = 0 if numerics.main_params_in_optimizer or numerics.weight == _FLOAT else _FLOAT * shard
    share = shard / max(1, count)
    if main and numerics.cuda:
        main += _unsplit(chunks, _FLOAT, share)
    masters = 0
    if numerics.main_params_in_optimizer:
        masters = 2 if numerics.store_remainders and numerics.main_param == _FLOAT else numerics.main_param
    state = (numerics.exp_avg + numerics.exp_avg_sq + masters) * shard
    copies = 0 if numerics.main_params_in_optimizer or numerics.grad == _FLOAT else _FLOAT * shard
    largest = max((size for chunk in chunks for size in (*chunk.dense, *chunk.expert)), default=0)
    weights = numerics.weight * (total if sharded else count)
    gradients = numerics.grad * total
    built = weights + gradients + main
    # The model is built with parameters of its own; buffers come beside them, one for each group of ranks.
    copied = numerics.weight * count if sharded else 0
    return ModelState(
        parameters=count,
        weights=weights,
        gradients=gradients,
        main_params=main,
        state=state,
        main_gradients=copies,
        temporaries=_temporaries(numerics, stepped, largest),
        written=_written(numerics, chunks, dense_shard, expert_shard),
        build_peak=max(weights + gradients + copied, built + (numerics.weight * min(largest, shard) if main else 0)),
        largest=largest,
        unsplit=_unsplit_of_step(chunks, numerics, share, copies > 0),
    )


def _unsplit(chunks: Sequence[Parameters], width: int, share: float) -> int:
    return int(share * sum(unsplit(width * size) for chunk in chunks for size in (*chunk.dense, *chunk.expert)))


def _unsplit_of_step(chunks: Sequence[Parameters], numerics: Numerics, share: float, copies: bool) -> Unsplit:
    if not numerics.cuda:
        return Unsplit()
    moments = (numerics.exp_avg, numerics.exp_avg_sq)
    copied = [_FLOAT for width in moments if width != _FLOAT] if numerics.copies_moments else []
    state = temporaries = 0
    segments = Segments()
    for size in (size for chunk in chunks for size in (*chunk.dense, *chunk.expert)):
        # Parameter by parameter, its moments and then their copies (FusedAdam.step).
        state += sum(segments.beyond(width * size) for width in moments)
        temporaries += sum(segments.beyond(width * size) for width in copied)
    return Unsplit(
        gradients=_unsplit(chunks, _FLOAT, share) if copies else 0,
        state=int(share * state),
        temporaries=int(share * temporaries),
    )


class Segments:
    """Fresh segments of torch's allocator, filled without anything freed (c10/cuda/CUDACachingAllocator.cpp)."""

    def __init__(self) -> None:
        self._left: list[int] = []
        """Free blocks that were split off, by size."""

    def beyond(self, size: int) -> int:
        """Bytes beyond a request's own that are counted with it.

        It gets the smallest free block that holds it (best fit), or a new segment: of 20 MiB below 10 MiB, else a
        multiple of 2 MiB (get_allocation_size). What is left is split off if it is more than 1 MiB (should_split).
        """
        if size <= _MIB:
            # From the small pool, which always splits.
            return 0
        index = bisect_left(self._left, size)
        if index < len(self._left):
            block = self._left.pop(index)
        else:
            block = 20 * _MIB if size < 10 * _MIB else -(-size // (2 * _MIB)) * 2 * _MIB
        left = block - size
        if left <= _MIB:
            return left
        insort(self._left, left)
        return 0


def unsplit(size: int) -> int:
    """Bytes of a fresh segment that stay with a request of `size` bytes, and are counted as allocated.

    A request of 10 MiB and more gets a segment of its own, a multiple of 2 MiB, and what is left of it is split off
    only if it is more than 1 MiB (c10/cuda/CUDACachingAllocator.cpp, get_allocation_size and should_split): an expert's
    weight of 11 MiB counts as 12. Main parameters always get fresh segments, as nothing was freed before them.
    """
    left = -size % (2 * _MIB)
    return left if size >= 10 * _MIB and left <= _MIB else 0


def _temporaries(numerics: Numerics, shard: int, largest: int) -> int:
    if not numerics.cuda:
        # torch's Adam, one parameter after another: a root and a quotient (torch/optim/adamw.py).
        return 2 * _FLOAT * min(largest, shard)
    formats = [numerics.exp_avg, numerics.exp_avg_sq] if numerics.copies_moments else []
    if numerics.main_params_in_optimizer and not numerics.store_remainders:
        formats.append(numerics.main_param)
    # FusedAdam.step makes a float32 copy of every state that is not float32, of all its parameters at once.
    return sum(_FLOAT * shard for size in formats if size != _FLOAT)


def _written(numerics: Numerics, chunks: Sequence[Parameters], dense: int, expert: int) -> int:
    """FusedAdam._apply_scale rounds each copy to a tensor of its own before it puts it into the moment: the largest
    parameter's comes on top of the copies of all, which live until the step ends."""
    if not numerics.copies_moments or 2 not in (numerics.exp_avg, numerics.exp_avg_sq):
        return 0
    sizes = (size for chunk in chunks for size in (chunk.dense if dense >= expert else chunk.expert))
    return 2 * min(max(sizes, default=0), max(dense, expert))


def _shards(chunks: Sequence[Parameters], layout: Layout, numerics: Numerics) -> tuple[int, int]:
    """Numbers of dense parameters and of experts' whose state this rank holds."""
    if not numerics.distributed_optimizer:
        return sum(sum(chunk.dense) for chunk in chunks), sum(sum(chunk.expert) for chunk in chunks)
    wide = numerics.high_busbw_padding
    dense = sum(largest_shard(chunk.dense, layout.dp_with_cp, high_busbw=wide) for chunk in chunks)
    return dense, sum(largest_shard(chunk.expert, layout.expert_dp, high_busbw=wide) for chunk in chunks)


def _buffers(chunks: Sequence[Parameters], layout: Layout, numerics: Numerics) -> tuple[int, int]:
    def size(sizes: Sequence[int], ranks: int) -> int:
        return buffer_size(
            sizes, ranks, distributed=numerics.distributed_optimizer, high_busbw=numerics.high_busbw_padding
        )

    dense = sum(size(chunk.dense, layout.dp_with_cp) for chunk in chunks)
    return dense, sum(size(chunk.expert, layout.expert_dp) for chunk in chunks)
