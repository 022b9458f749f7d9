"""The memory that a job needs: bytes for each pipeline rank and each stage of a step. Uncalibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.predict.job import Job, Layout, Local, Numerics, Shapes, local_sizes
from orchestrator.predict.optimizer import ModelState, model_state
from orchestrator.predict.parameters import (
    Parameters,
    embedding_parameters,
    layer_parameters,
    mtp_parameters,
    norm_parameters,
    output_parameters,
)
from orchestrator.predict.pipeline import Chunk, Mix, Moments, chunks_of, moments
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.walk import Walk, walk
from orchestrator.vocabulary import Stage

_MIB = 2**20
WORKSPACE = 32 * _MIB
"""A cuBLAS workspace on Hopper (TE cpp_extensions/gemm.py get_cublas_workspace_size_bytes; torch's own is as large)."""
_TORCH_WORKSPACES = 2
"""torch keeps one for each thread that multiplies: forward's and autograd's."""
_GROUPED_STREAMS = 4
"""TE keeps one for each stream of a grouped product."""

STAGES = (
    Stage.MODEL_BUILD,
    Stage.FORWARD,
    Stage.BACKWARD,
    Stage.REPLAY,
    Stage.GRAD_SYNC,
    Stage.OPTIMIZER_INIT,
    Stage.OPTIMIZER_STEP,
)
"""The stages that have a prediction. `model_build` stands for all of set-up."""


@dataclass(frozen=True)
class RankMemory:
    """The peaks of one pipeline rank, in bytes. All ranks of one pipeline rank are alike."""

    pp_rank: int
    state: ModelState
    first: Mapping[Stage, int]
    """Peaks of the first iteration; a stage that is not entered is absent."""
    steady: Mapping[Stage, int]
    """Peaks of every later iteration."""
    kept: int
    """What forward leaves for backward when most micro-batches are in flight."""
    in_flight: tuple[int, ...]
    """Micro-batches of each model chunk at that point."""
    after_step: int
    """Alive from the end of an optimizer step to the next one's `zero_grad`."""
    fixed: int
    """Alive through the first iteration beside activations: model, workspaces, caches."""

    @property
    def peak(self) -> int:
        """The largest of all stages and iterations."""
        return max((*self.first.values(), *self.steady.values()))

    @property
    def peak_stage(self) -> Stage:
        """Where that is."""
        both = [*self.first.items(), *self.steady.items()]
        return max(both, key=lambda item: item[1])[0]


@dataclass(frozen=True)
class Prediction:
    """What a job needs, by pipeline rank."""

    ranks: tuple[RankMemory, ...]

    @property
    def peak(self) -> int:
        """The largest peak of any rank."""
        return max(rank.peak for rank in self.ranks)

    @property
    def hottest(self) -> RankMemory:
        """The rank with the largest peak."""
        return max(self.ranks, key=lambda rank: rank.peak)


def predict_memory(job: Job) -> Prediction:
    """The peaks of every pipeline rank.

    Raises:
        CannotPredictError: the layers do not divide over the pipeline, or memory moves to the host.
    """
    if job.offloading is not None:
        raise CannotPredictError(f"{job.offloading} moves memory to the host, which predictions do not count")
    return Prediction(
        tuple(_rank(job, index, chunks) for index, chunks in enumerate(chunks_of(job.shapes, job.layout)))
    )


def chunk_parameters(shapes: Shapes, layout: Layout, chunk: Chunk, numerics: Numerics) -> Parameters:
    """What one model chunk holds on one rank."""
    total = Parameters()
    if chunk.embeds:
        total += embedding_parameters(shapes, layout)
    by_kind = {kind: layer_parameters(kind, shapes, layout, numerics) for kind in set(chunk.layers)}
    for kind in chunk.layers:
        total += by_kind[kind]
    if chunk.norm:
        total += norm_parameters(shapes)
    for kind in chunk.mtp:
        total += mtp_parameters(kind, shapes, layout, numerics)
    if chunk.output:
        total += output_parameters(shapes, layout, own_output=not shapes.tied or not chunk.embedding)
    return total


@lru_cache(maxsize=512)
def rank_state(shapes: Shapes, layout: Layout, numerics: Numerics, chunks: tuple[Chunk, ...]) -> ModelState:
    """Model, gradients and optimizer of one pipeline rank."""
    parameters = tuple(chunk_parameters(shapes, layout, chunk, numerics) for chunk in chunks)
    return model_state(parameters, layout, numerics)


def _rank(job: Job, index: int, chunks: tuple[Chunk, ...]) -> RankMemory:
    local = local_sizes(job)
    state = rank_state(job.shapes, job.layout, job.numerics, chunks)
    several = job.microbatches > 1
    first = [walk(c, job.shapes, local, job.numerics, job.recompute, several) for c in chunks]
    later = first if several else [walk(c, job.shapes, local, job.numerics, job.recompute, True) for c in chunks]
    fixed = (
        state.built
        + state.weight_copies
        + sum(one.persistent for one in first)
        + _workspaces(job)
        + _shared_buffer(job, local)
    )
    fixed += _caches(job, len(chunks)) + exchanged(job, local, index, len(chunks))
    when = moments(job.layout.pp, index, len(chunks), job.microbatches)
    lingers = sum(one.lingers for one in first)
    after = fixed + lingers
    opening = _peaks(fixed, first, when)
    gradients, kept_state, temporaries = _step(state, max(opening.values()) - after)
    step = gradients + kept_state + temporaries
    # Weights are quantised when the moments' copies are gone.
    stepped = gradients + kept_state + max(temporaries + state.written, state.quantising)
    build = {Stage.MODEL_BUILD: state.build_peak}
    opening |= {
        Stage.GRAD_SYNC: after,
        Stage.OPTIMIZER_INIT: after + (step if job.numerics.cuda else gradients + kept_state),
        Stage.OPTIMIZER_STEP: after + stepped,
    }
    steady = _peaks(fixed + kept_state, later, when) | {
        Stage.GRAD_SYNC: kept_state + max(after, _overlapped(job, index, fixed, later)),
        Stage.OPTIMIZER_STEP: after + stepped,
    }
    kept, most = max((sum(n * one.kept for n, one in zip(mix, first, strict=True)), mix) for mix in when.mixes)
    return RankMemory(index, state, build | opening, steady, kept, most, after + gradients + kept_state, fixed)


def _step(state: ModelState, cached: int) -> tuple[int, int, int]:
    """Bytes of a step's main gradients, optimizer state and temporaries, as the allocator counts them.

    They take the blocks that activations left in its cache (`cached` bytes), cut to size, and what these do not cover
    comes in fresh segments, some of whose remainder is counted too.
    """
    behind = state.state + state.temporaries
    fresh_gradients = _share(state.main_gradients - cached, state.main_gradients)
    fresh = _share(behind - max(0, cached - state.main_gradients), behind)
    return (
        state.main_gradients + int(fresh_gradients * state.unsplit.gradients),
        state.state + int(fresh * state.unsplit.state),
        state.temporaries + int(fresh * state.unsplit.temporaries),
    )


def _share(part: int, whole: int) -> float:
    return min(1.0, max(0, part) / whole) if whole else 0.0


def _peaks(fixed: int, walks: list[Walk], when: Moments) -> dict[Stage, int]:
    lingers = sum(one.lingers for one in walks)

    kept = [one.kept for one in walks]

    def beside(chunk: int, mix: Mix) -> int:
        """All but the micro-batch at work: what the chunk's own last backward left is counted in its walk."""
        held = sum(map(int.__mul__, mix, kept)) - kept[chunk]
        return fixed + held + lingers - walks[chunk].lingers

    found = {
        Stage.FORWARD: max(beside(chunk, mix) + walks[chunk].forward for chunk, mix in when.forward),
        Stage.BACKWARD: max(beside(chunk, mix) + walks[chunk].backward for chunk, mix in when.backward),
    }
    replayed = [beside(chunk, mix) + walks[chunk].replay for chunk, mix in when.backward if walks[chunk].replay]
    return found | ({Stage.REPLAY: max(replayed)} if replayed else {})


def _overlapped(job: Job, index: int, fixed: int, walks: list[Walk]) -> int:
    """Bytes alive where the reduction of gradients begins inside the last backward; 0 where it begins behind it.

    With `overlap_grad_reduce`, each bucket's reduction begins in the hook of the weight that fills it, from the second
    iteration on: the first one only counts (_ParamAndGradBucketGroup.register_grad_ready, is_first_batch). A pipeline's
    later stages and its later model chunks have one bucket each, full when their backward ends
    (DistributedDataParallel.__init__, disable_bucketing). Every linear layer is taken to fill a bucket, which in models
    whose weights have 40 million numbers it does; else the stage is entered later, with less alive.
    """
    if not job.numerics.overlap_grad_reduce or not job.numerics.cuda or index > 0:
        return 0
    return fixed + walks[0].ready + sum(one.lingers for one in walks[1:])


def _shared_buffer(job: Job, local: Local) -> int:
    """Megatron Core's one scratch buffer (utils.py GlobalMemoryBuffer): unfused attention's scores, or what the output
    layer gathers over sequence-parallel ranks, whichever is larger."""
    shapes, element = job.shapes, job.numerics.weight
    attends = any(kind.mixer in ("mla", "gqa") for kind in shapes.layers)
    scores = local.tokens * shapes.attention.heads // local.tp * local.seq * local.cp * element
    gathered = local.tokens * shapes.hidden * element if local.sequence_parallel else 0
    return max(gathered, scores if attends and not shapes.attention.fused_core else 0)


def _caches(job: Job, chunks: int) -> int:
    """What a model computes once: each chunk's rotation angles (multi-latent attention caches them by layer), and the
    causal mask of unfused attention (fusions/fused_softmax.py get_default_causal_mask)."""
    shapes, seq = job.shapes, job.batch.seq_length
    mixers = {kind.mixer for kind in shapes.layers}
    angles = 4 * seq * shapes.attention.rope_dim * chunks if "gqa" in mixers else 0
    masked = mixers & {"mla", "gqa"} and not shapes.attention.fused_core
    return angles + (seq * seq if masked else 0)


def exchanged(job: Job, local: Local, index: int, chunks: int) -> int:
    """What the schedules' own variables hold beside a micro-batch that is worked on (pipeline_parallel/schedules.py):
    behind another stage the next input and the gradient sent back, before another one the gradient received."""
    pp = job.layout.pp
    stream = local.shard * job.shapes.hidden * job.numerics.weight
    return chunks * stream * (2 * (index > 0) + (index < pp - 1))


def _workspaces(job: Job) -> int:
    if not job.numerics.cuda:
        return 0
    number = _TORCH_WORKSPACES
    if job.numerics.transformer_engine:
        number += 1
        if job.shapes.experts.grouped and any(kind.mlp == "moe" for kind in job.shapes.layers):
            number += _GROUPED_STREAMS
    return number * WORKSPACE
