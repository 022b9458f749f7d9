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
    "optimizer step copies all moments to float32; `predict --transformer-engine VERSION` names it, and so does a "
    "pinned Bridge whose lock file is known, as of revisions=guide_2026_08"
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
    quantising: int
    """Behind the step proper, while FP8 weights are made from their masters."""
    weight_copies: int
    """Quantised copies of BF16 weights, from the first forward on."""
    build_peak: int
    """Most bytes while model and optimizer are built."""
    largest: int
    """The largest parameter, in numbers."""
    unsplit: Unsplit
    """What torch's allocator may count beyond the step's own allocations."""

    @property
    def avoidable(self) -> int:
        """By how much a step's peak falls with a Transformer Engine that copies no moments."""
        return max(0, self.temporaries + self.written - self.quantising)

    @property
    def built(self) -> int:
        """Alive once the optimizer is built."""
        return self.weights + self.gradients + self.main_params


@dataclass(frozen=True)
class _Buffer:
    """One contiguous buffer of parameters and their gradients, which ranks share a shard each of."""

    sizes: tuple[int, ...]
    ranks: int
    expert: bool
    fp8: bool
    distributed: bool
    high_busbw: bool

    @property
    def numbers(self) -> int:
        """Padding included."""
        return buffer_size(self.sizes, self.ranks, distributed=self.distributed, high_busbw=self.high_busbw)

    @property
    def shard(self) -> int:
        """Numbers of real parameters whose state the fullest rank holds."""
        if not self.distributed:
            return sum(self.sizes)
        return largest_shard(self.sizes, self.ranks, high_busbw=self.high_busbw)


@lru_cache(maxsize=1024)
def model_state(chunks: tuple[Parameters, ...], layout: Layout, numerics: Numerics) -> ModelState:
    """The state of a rank's model chunks."""
    buffers = _buffers(chunks, layout, numerics)
    count = sum(chunk.count for chunk in chunks)
    # Experts that are spread over ranks have an optimizer of their own (optimizer/__init__.py, ChainedOptimizer), and
    # optimizers step one after the other.
    each = [[one for one in buffers if one.expert is expert] for expert in (False, True)]
    shards = [sum(one.shard for one in group) for group in each]
    shard = sum(shards)
    main = 0 if numerics.main_params_in_optimizer or numerics.weight == _FLOAT else _FLOAT * shard
    share = shard / max(1, count)
    if main and numerics.cuda:
        main += _unsplit(chunks, _FLOAT, share)
    masters = 0
    if numerics.main_params_in_optimizer:
        masters = 2 if numerics.store_remainders and numerics.main_param == _FLOAT else numerics.main_param
    state = (numerics.exp_avg + numerics.exp_avg_sq + masters) * shard
    copies = 0 if numerics.main_params_in_optimizer or numerics.grad == _FLOAT else _FLOAT * shard
    largest = max((size for chunk in chunks for size in chunk.sizes), default=0)
    weights = sum(_weights(one, numerics) for one in buffers)
    gradients = numerics.grad * sum(one.numbers for one in buffers)
    built = weights + gradients + main
    return ModelState(
        parameters=count,
        weights=weights,
        gradients=gradients,
        main_params=main,
        state=state,
        main_gradients=copies,
        temporaries=_temporaries(numerics, max(shards), largest),
        written=_written(numerics, each, shards),
        quantising=max(_quantising(group, numerics) for group in each),
        weight_copies=_quantised(sum(chunk.copied_to_fp8 for chunk in chunks), numerics),
        build_peak=max(_wrapping_peak(buffers, numerics), built + (_cloned(each, shards, numerics) if main else 0)),
        largest=largest,
        unsplit=_unsplit_of_step(chunks, numerics, share, copies > 0),
    )


def _quantised(numbers: int, numerics: Numerics) -> int:
    """Bytes of a weight in FP8: row-wise and, for the product of the backward, column-wise, a byte each.

    As the quantizer of a weight has both usages (TE module/base.py reset_parameters and get_weight_workspace). A card
    that multiplies FP8 in any layout (is_non_tn_fp8_gemm_supported: Blackwell) needs no transpose of a tensor that has
    one scale; that is not taken into account. Scales: four bytes for a block of 128 x 128, or one for 32 numbers.
    """
    scales = {"blockwise": 2 * _FLOAT * numbers // 128**2, "mxfp8": 2 * numbers // 32}
    return 2 * numbers + scales.get(numerics.fp8_recipe or "", 0)


def _weights(buffer: _Buffer, numerics: Numerics) -> int:
    """Bytes of a buffer's weights once they lie in it: of FP8 weights the row-wise copy does, as uint8 (TE
    tensor/utils.py replace_raw_data). MXFP8 weights lie outside; theirs shares the gradients' memory."""
    real = sum(buffer.sizes)
    if not buffer.fp8:
        return numerics.weight * (buffer.numbers if buffer.distributed else real)
    padding = buffer.numbers - real if buffer.distributed and numerics.fp8_recipe != "mxfp8" else 0
    return _quantised(real, numerics) + padding


def _quantising(buffers: Sequence[_Buffer], numerics: Numerics) -> int:
    """Bytes that one optimizer's step needs to write its FP8 weights anew from the float32 masters.

    cast_master_weights_to_fp8 (TE tensor/utils.py; called by DistributedOptimizer._copy_main_params_to_model_params
    through fp8_utils.py quantize_param_shard) first copies this rank's shards of all of them to the weights' nominal
    BF16. With one scale a tensor (current and delayed scaling), each shard is then quantised by a quantizer that also
    makes a transpose, which nobody keeps: a byte for each number of the largest. Blocks are cast without
    (tex.fp8_block_scaling_partial_cast). The weights' own transposes are filled in place (post_all_gather_processing).
    MXFP8 writes BF16 into the shared buffer instead (_copy_main_params_to_param_buffer), and a precision-aware
    optimizer with delayed scaling writes the weights itself.
    """
    if numerics.main_params_in_optimizer or numerics.fp8_recipe == "mxfp8":
        return 0
    quantised = [one for one in buffers if one.fp8]
    shard = sum(one.shard for one in quantised)
    largest = max((size for one in quantised for size in one.sizes), default=0)
    transpose = min(largest, shard) if numerics.fp8_recipe != "blockwise" else 0
    return numerics.weight * shard + transpose


def _wrapping_peak(buffers: Sequence[_Buffer], numerics: Numerics) -> int:
    """Most bytes while weights move into buffers: the model is built with weights of its own, and each buffer takes
    its weights over before the next is made (_ParamAndGradBuffer.__init__)."""
    if not numerics.distributed_optimizer:
        return sum(_weights(one, numerics) + numerics.grad * one.numbers for one in buffers)
    alive = sum(_built(one, numerics) for one in buffers)
    peak = alive
    for one in buffers:
        outside = numerics.fp8_recipe == "mxfp8" and one.fp8
        moved = sum(one.sizes) * (1 if one.fp8 else numerics.weight)
        made = one.numbers * (1 if one.fp8 else numerics.weight)
        alive += numerics.grad * one.numbers + (0 if outside else made)
        peak = max(peak, alive)
        alive -= 0 if outside else moved
    return peak


def _built(buffer: _Buffer, numerics: Numerics) -> int:
    real = sum(buffer.sizes)
    return _quantised(real, numerics) if buffer.fp8 else numerics.weight * real


def _cloned(each: Sequence[Sequence[_Buffer]], shards: Sequence[int], numerics: Numerics) -> int:
    """Bytes beyond what is built at the highest point of making float32 masters, each from a clone in BF16.

    In a buffer's order, which is the model's reversed (DistributedOptimizer._build_model_and_main_param_groups):
    masters that are still to come count less. Of a shard, which weights it has is not known: the largest may be last.
    """
    sizes = [size for group in each for one in group for size in reversed(one.sizes)]
    if sum(shards) < sum(sizes):
        return numerics.weight * min(max(sizes), sum(shards))
    highest = to_come = 0
    for size in reversed(sizes):
        highest = max(highest, numerics.weight * size - to_come)
        to_come += _FLOAT * size
    return highest


def _unsplit(chunks: Sequence[Parameters], width: int, share: float) -> int:
    return int(share * sum(unsplit(width * size) for chunk in chunks for size in chunk.sizes))


def _unsplit_of_step(chunks: Sequence[Parameters], numerics: Numerics, share: float, copies: bool) -> Unsplit:
    if not numerics.cuda:
        return Unsplit()
    moments = (numerics.exp_avg, numerics.exp_avg_sq)
    copied = [_FLOAT for width in moments if width != _FLOAT] if numerics.copies_moments else []
    state = temporaries = 0
    segments = Segments()
    for size in (size for chunk in chunks for size in chunk.sizes):
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


def _written(numerics: Numerics, each: Sequence[Sequence[_Buffer]], shards: Sequence[int]) -> int:
    """FusedAdam._apply_scale rounds each copy to a tensor of its own before it puts it into the moment: the largest
    parameter's comes on top of the copies of all, which live until the step ends."""
    if not numerics.copies_moments or 2 not in (numerics.exp_avg, numerics.exp_avg_sq):
        return 0
    shard, group = max(zip(shards, each, strict=True), key=lambda one: one[0])
    return 2 * min(max((size for one in group for size in one.sizes), default=0), shard)


def _buffers(chunks: Sequence[Parameters], layout: Layout, numerics: Numerics) -> list[_Buffer]:
    """In the order in which they are made: for each chunk the dense ones and then the experts', each by its weights'
    format (DistributedDataParallel.__init__). The first parameter of a model is no FP8 weight."""
    found = []
    for chunk in chunks:
        for sizes, expert, fp8 in (
            (chunk.dense, False, False),
            (chunk.fp8_dense, False, True),
            (chunk.expert, True, False),
            (chunk.fp8_expert, True, True),
        ):
            ranks = layout.expert_dp if expert else layout.dp_with_cp
            if sizes:
                found.append(
                    _Buffer(sizes, ranks, expert, fp8, numerics.distributed_optimizer, numerics.high_busbw_padding)
                )
    return found
