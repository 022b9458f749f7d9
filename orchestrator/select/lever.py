"""Whether recompute can help at all: where the memory sits that has to go. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.vocabulary import SETUP_STAGES, Stage
from orchestrator.vocabulary.units import format_bytes

ACTIVATION_STAGES = frozenset({Stage.FORWARD, Stage.BACKWARD, Stage.REPLAY})
"""Where activations are held, so where recompute acts."""
OPTIMIZER_STAGES = frozenset({Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP})
STATE_STAGES = OPTIMIZER_STAGES | SETUP_STAGES | {Stage.CHECKPOINT_LOAD}
"""Parameters, gradients and optimizer state: recompute changes none of them."""
FRAGMENTATION_SHARE = 0.1
"""Reserved minus allocated, as a share of reserved, from which the allocator's caching is worth a look first."""
FRAGMENTATION_BYTES = 2**29
"""What that has to be at least: a run that stopped before it built anything holds its segments' granularity."""


@dataclass(frozen=True)
class StageUse:
    """Memory of one stage over all ranks, bytes."""

    allocated: int | None
    reserved: int | None
    rank: int | None


@dataclass(frozen=True)
class Measured:
    """One candidate's memory by stage, and the stage and cause it stopped for, if it did."""

    name: str
    stages: Mapping[Stage, StageUse]
    stopped_in: Stage | None = None
    cause: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Recompute is not what helps here, and why, with the numbers."""

    id: str
    text: str


OPTIMIZER_BOUND = "optimizer-bound"
RESERVED_GAP = "reserved-minus-allocated"


def verdicts(candidates: Sequence[Measured], limit: int | None) -> list[Verdict]:
    """What keeps the target out of reach whatever is recomputed; empty where recompute may be the lever.

    `limit` is the target in bytes; None asks only where the peaks are.
    """
    found = [verdict for verdict in (_state(candidates, limit), _gap(candidates, limit)) if verdict is not None]
    return sorted(found, key=lambda verdict: verdict.id)


def _state(candidates: Sequence[Measured], limit: int | None) -> Verdict | None:
    """Parameters and optimizer state alone exceed the limit; without a limit, they set the peak of every candidate."""
    floors = [floor for candidate in candidates if (floor := _floor(candidate)) is not None]
    if not floors:
        return None
    size, name, stage, rank = min(floors)
    if limit is None:
        hottest = [hot[0] for candidate in candidates if (hot := _hottest(candidate)) is not None]
        if any(hot_stage not in STATE_STAGES for hot_stage in hottest):
            return None
    elif size <= limit:
        return None
    activations = [peak for candidate in candidates if (peak := _largest(candidate, ACTIVATION_STAGES)) is not None]
    needed = f", while forward and backward need {format_bytes(min(activations))} at best" if activations else ""
    over = f", over the limit of {format_bytes(limit)}" if limit is not None else ""
    where = f" on rank {rank}" if rank >= 0 else ""
    return Verdict(
        OPTIMIZER_BOUND,
        f"Recompute is not the lever: {stage} alone takes at least {format_bytes(size)}{where} (with {name}){over}"
        f"{needed}.",
    )


def _floor(candidate: Measured) -> tuple[int, str, str, int] | None:
    """The largest peak of the stages that recompute does not touch, where the optimizer's is among them."""
    known = [(stage, use) for stage, use in candidate.stages.items() if use.allocated is not None]
    if not any(stage in OPTIMIZER_STAGES for stage, _ in known):
        return None
    stage, use = max(
        (pair for pair in known if pair[0] in STATE_STAGES), key=lambda pair: (pair[1].allocated or 0, -pair[0].code)
    )
    return use.allocated or 0, candidate.name, str(stage), -1 if use.rank is None else use.rank


def _gap(candidates: Sequence[Measured], limit: int | None) -> Verdict | None:
    """A candidate holds in the allocator's cache what it lacks: reserved is large, allocated is not."""
    worst: tuple[int, str, int, int] | None = None
    for candidate in candidates:
        allocated, reserved = _largest(candidate, None), _reserved(candidate)
        if allocated is None or reserved is None or reserved - allocated < FRAGMENTATION_SHARE * reserved:
            continue
        blocked = candidate.cause == "fragmentation" or (limit is not None and allocated <= limit < reserved)
        gap = (reserved - allocated, candidate.name, reserved, allocated)
        if blocked and (worst is None or gap > worst):
            worst = gap
    if worst is None:
        return None
    gap_size, name, reserved, allocated = worst
    return Verdict(
        RESERVED_GAP,
        f"Recompute is not the first lever: {name} reserved {format_bytes(reserved)} and allocated "
        f"{format_bytes(allocated)}, so {format_bytes(gap_size)} is cached or fragmented. Try "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before recomputing more.",
    )


def _hottest(candidate: Measured) -> tuple[Stage, StageUse] | None:
    known = [(stage, use) for stage, use in candidate.stages.items() if use.allocated is not None]
    return max(known, key=lambda pair: (pair[1].allocated or 0, -pair[0].code), default=None)


def _largest(candidate: Measured, stages: frozenset[Stage] | None) -> int | None:
    return max(
        (
            use.allocated
            for stage, use in candidate.stages.items()
            if use.allocated is not None and (stages is None or stage in stages)
        ),
        default=None,
    )


def _reserved(candidate: Measured) -> int | None:
    return max((use.reserved for use in candidate.stages.values() if use.reserved is not None), default=None)
