"""Whether a candidate fits a memory target: yes, perhaps or no, with a stated range for what cannot be known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from orchestrator.predict.calibrate import Calibration, expect
from orchestrator.predict.job import Job, local_sizes
from orchestrator.predict.layers import layer_ledger
from orchestrator.predict.memory import Prediction, RankMemory, exchanged
from orchestrator.vocabulary import Stage

_GB = 10**9
OPTIMIZER_COPIES = "optimizer step"
"""The term for copies that a newer Transformer Engine does not make."""
_OTHER_STAGES = ("collectives", "optimizer")


class Answer(str, Enum):
    """What a prediction says of a target."""

    FITS = "fits"
    MAY_FIT = "may fit"
    WILL_NOT_FIT = "will not fit"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Term:
    """One thing that the ledger cannot know. Bytes, on top of the predicted peak."""

    name: str
    low: int
    high: int
    why: str


@dataclass(frozen=True)
class Range:
    """The peak of the hottest rank, and between what it may lie. Bytes allocated by torch."""

    expected: int
    low: int
    high: int
    terms: tuple[Term, ...]
    outside: tuple[Term, ...]
    """What a device needs beside torch's allocations: it counts against its capacity, not against a target."""

    def answer(self, target: int) -> Answer:
        """Against a target for allocated memory."""
        if self.low > target:
            return Answer.WILL_NOT_FIT
        return Answer.FITS if self.high <= target else Answer.MAY_FIT

    def answer_device(self, capacity: int) -> Answer:
        """Against a device's whole memory."""
        low = self.low + sum(term.low for term in self.outside)
        high = self.high + sum(term.high for term in self.outside)
        if low > capacity:
            return Answer.WILL_NOT_FIT
        return Answer.FITS if high <= capacity else Answer.MAY_FIT


def range_of(job: Job, prediction: Prediction, calibration: Calibration | None = None) -> Range:
    """The range of the hottest rank's peak, as a measured control taught it where there is one."""
    rank = prediction.hottest
    terms = _terms(job, rank, calibrated=calibration is not None)
    expected, doubt = rank.peak, 0
    if calibration is not None:
        taught = expect(rank, calibration)
        expected, doubt = taught.peak, taught.high - taught.peak
    return Range(
        expected=expected,
        low=max(0, expected + sum(term.low for term in terms)),
        high=expected + max(doubt, _highest(job, terms)),
        terms=terms,
        outside=_outside(job, rank),
    )


def _highest(job: Job, terms: tuple[Term, ...]) -> int:
    """What the terms may add up to. On the CPU, those of other stages than the peak's do not: the largest counts."""
    apart = [term.high for term in terms if term.name in _OTHER_STAGES]
    together = sum(term.high for term in terms if term.name not in _OTHER_STAGES)
    if job.numerics.cuda or not any(apart):
        return together
    return max(together, max(apart) + next(term.high for term in terms if term.name == "ledger"))


def _terms(job: Job, rank: RankMemory, *, calibrated: bool) -> tuple[Term, ...]:
    if not job.numerics.cuda:
        return (*_on_cpu(job, rank), *_order(job, rank), *_routing(job, rank, calibrated=calibrated))
    share = 0.01 if calibrated else 0.03
    error = int(share * rank.kept)
    terms = [Term("ledger", -error, error, f"{share:.0%} of the activations that forward keeps")]
    unsplit = rank.state.unsplit
    if job.numerics.copies_moments and job.numerics.moments_in_place is None:
        copies = {
            Stage.OPTIMIZER_INIT: rank.state.temporaries,
            Stage.OPTIMIZER_STEP: rank.state.avoidable,
        }
        without = max(
            size - copies.get(stage, 0) for peaks in (rank.first, rank.steady) for stage, size in peaks.items()
        )
        if without < rank.peak:
            why = "Transformer Engine 2.14 and newer copy no bfloat16 moments to float32; which one runs is not said"
            terms.append(Term(OPTIMIZER_COPIES, without - rank.peak, 0, why))
    spare = unsplit.gradients + unsplit.state + unsplit.temporaries
    terms.append(
        Term("allocator", -spare // 2, spare // 2 + _GB // 10, "remainders of segments too small to be split off")
    )
    terms.append(
        Term("libraries", 0, _GB // 4, "workspaces of cuDNN and Triton, and what JIT warm-up holds for a step")
    )
    terms += [*_order(job, rank), *_routing(job, rank, calibrated=calibrated)]
    if job.cuda_graphs:
        terms.append(Term("CUDA graphs", 0, rank.kept // 4, "private pools hold what a captured layer would free"))
    return tuple(terms)


def _on_cpu(job: Job, rank: RankMemory) -> tuple[Term, ...]:
    """What the CPU trainer's peaks leave open: its operations are torch's, one by one, and its collectives gloo's."""
    error, local = rank.kept // 50, local_sizes(job)
    kinds = {layer_ledger(kind, job.shapes, local, job.numerics) for kind in set(job.shapes.layers)}
    one = max((tensor.bytes for ledger in kinds for tensor in ledger.tensors), default=0)
    copies = job.layout.dp_with_cp > 1 or job.layout.expert_dp > 1
    synced = rank.steady[Stage.GRAD_SYNC] + rank.state.gradients if copies else 0
    stepped = rank.steady[Stage.OPTIMIZER_STEP] + 4 * rank.state.largest
    return (
        Term("ledger", -error, error, "2% of the activations that forward keeps"),
        Term("operations", -one, one, "the largest tensor of a layer, freed before the next is made or after"),
        Term("collectives", 0, max(0, synced - rank.peak), "gloo may reduce a copy of the gradients"),
        Term(
            "optimizer", 0, max(0, stepped - rank.peak), "torch's Adam makes two or three tensors of a parameter's size"
        ),
    )


def _order(job: Job, rank: RankMemory) -> tuple[Term, ...]:
    """What depends on the instant at which something that was sent, gathered or reduced is freed."""
    local, layout = local_sizes(job), job.layout
    terms = []
    if layout.tp > 1:
        whole = local.tokens * job.shapes.hidden * job.numerics.weight
        why = "a gathered input and a gradient that is not reduced yet may be there at once"
        terms.append(Term("tensor parallelism", 0, whole, why))
    if layout.chunks > 1:
        passed = exchanged(job, local, rank.pp_rank, layout.chunks)
        last = rank.pp_rank == layout.pp - 1
        one = rank.kept // max(1, sum(rank.in_flight)) if last else 0
        why = "what was sent on may be gone before the next is taken" + (
            ", and on the last stage its loss" if last else ""
        )
        terms.append(Term("interleaving", -passed - one, 0, why))
    return tuple(terms)


def _routing(job: Job, rank: RankMemory, *, calibrated: bool) -> tuple[Term, ...]:
    """Which rank's experts get more tokens than the mean: one that has all experts has all tokens."""
    experts, layout = job.shapes.experts, job.layout
    if not experts.count or layout.ep * layout.etp == 1 or experts.random_logits or calibrated:
        return ()
    share = _routed(job, rank) // 2
    return (Term("routing", 0, share, "tokens of the fullest rank's experts over the mean: up to a half"),)


def _routed(job: Job, rank: RankMemory) -> int:
    """Bytes of a rank's kept activations that grow with its experts' tokens: an upper bound, all that is kept."""
    layers = sum(kind.mlp == "moe" for kind in job.shapes.layers)
    return rank.kept * layers // max(1, len(job.shapes.layers))


def _outside(job: Job, rank: RankMemory) -> tuple[Term, ...]:
    if not job.numerics.cuda:
        return ()
    terms = [Term("CUDA context", 4 * _GB // 10, 9 * _GB // 10, "kernels and the driver's own memory")]
    layout = job.layout
    groups = sum(size > 1 for size in (layout.tp, layout.pp, layout.cp, layout.ep, layout.dp, layout.etp))
    if groups:
        terms.append(Term("NCCL", groups * _GB // 10, groups * _GB, "buffers of each process group's communicators"))
    idle = rank.steady.get(Stage.FORWARD, rank.peak)
    terms.append(Term("fragmentation", 0, idle // 12, "reserved and not allocated"))
    return tuple(terms)
