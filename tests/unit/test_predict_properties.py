"""What must hold of every prediction, whatever the model, layout and batch."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from orchestrator.predict.breakdown import LABELS, largest_tensors, savings
from orchestrator.predict.job import (
    Attention,
    Batch,
    DeltaNet,
    Experts,
    Job,
    LayerKind,
    Layout,
    Mamba,
    Numerics,
    Recompute,
    Shapes,
)
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.pipeline import moments
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.timing import cost_of
from orchestrator.vocabulary import Stage

KINDS = st.builds(LayerKind, st.sampled_from(["mla", "gqa", "mamba", "gdn"]), st.sampled_from(["dense", "moe", None]))
LABEL_SETS = st.frozensets(st.sampled_from(LABELS))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    tp, pp, ep = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    vpp = draw(st.sampled_from([None, 2])) if pp > 1 else None
    block = draw(st.lists(KINDS, min_size=1, max_size=3))
    layers = tuple(block * (8 if pp * (vpp or 1) == 8 else 4))
    shapes = Shapes(
        layers=layers,
        hidden=draw(st.sampled_from([256, 1024])),
        ffn=1024,
        vocab=1024,
        gated=draw(st.booleans()),
        fused_act=draw(st.booleans()),
        attention=Attention(
            8,
            4,
            64,
            draw(st.booleans()),
            32,
            draw(st.booleans()),
            False,
            draw(st.booleans()),
            False,
            draw(st.sampled_from([None, 128])),
            128,
            64,
            64,
        ),
        experts=Experts(8, 2, 256, draw(st.sampled_from([0, 512])), permute_fused=draw(st.booleans())),
        mamba=Mamba(heads=16, groups=4),
        delta=DeltaNet(key_heads=4, value_heads=8),
        fused_loss=draw(st.sampled_from(["te", None])),
    )
    layout = Layout(
        world=tp * pp * ep * draw(st.sampled_from([1, 2])), tp=tp, pp=pp, vpp=vpp, ep=ep,
        etp=draw(st.sampled_from([1, tp])), sequence_parallel=tp > 1 and draw(st.booleans()),
    )  # fmt: skip
    on_gpu = draw(st.booleans())
    numerics = Numerics(
        weight=2 if on_gpu else draw(st.sampled_from([2, 4])), grad=draw(st.sampled_from([2, 4])),
        precision_aware=draw(st.booleans()), exp_avg=draw(st.sampled_from([2, 4])),
        fp8=draw(st.sampled_from([None, "hybrid"])) if on_gpu else None, transformer_engine=on_gpu, cuda=on_gpu,
        fp8_recipe=draw(st.sampled_from(["tensorwise", "delayed", "blockwise", "mxfp8"])),
        fp8_params=draw(st.booleans()),
        moments_in_place=draw(st.sampled_from([True, False, None])), overlap_grad_reduce=draw(st.booleans()),
    )  # fmt: skip
    batch = Batch(draw(st.sampled_from([256, 1024])), draw(st.integers(1, 4)), 32)
    return Job(shapes, layout, numerics, batch, Recompute("selective", draw(LABEL_SETS)))


@settings(max_examples=80, deadline=None)
@given(jobs())
def test_no_prediction_is_negative(job: Job) -> None:
    for rank in predict_memory(job).ranks:
        assert min(*rank.first.values(), *rank.steady.values(), rank.kept, rank.fixed) >= 0
    cost = cost_of(job)
    assert min(cost.flops, cost.replayed_flops, cost.replayed_touched, cost.replayed_sent) >= 0
    assert all(share.bytes > 0 for share in largest_tensors(job))


@settings(max_examples=80, deadline=None)
@given(jobs(), st.booleans())
def test_more_tokens_never_need_less(job: Job, longer: bool) -> None:
    batch = job.batch
    more = (
        replace(batch, seq_length=2 * batch.seq_length) if longer else replace(batch, micro_batch=batch.micro_batch + 1)
    )
    same_steps = replace(more, global_batch=batch.global_batch // batch.micro_batch * more.micro_batch)
    for little, much in zip(
        predict_memory(job).ranks, predict_memory(replace(job, batch=same_steps)).ranks, strict=True
    ):
        assert little.kept <= much.kept
        for stage, size in little.first.items():
            if stage not in (Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP):
                assert size <= much.first[stage]


@settings(max_examples=150, deadline=None)
@given(jobs(), st.sampled_from(LABELS))
def test_a_further_label_never_raises_what_forward_keeps(job: Job, label: str) -> None:
    more = replace(job, recompute=Recompute("selective", job.recompute.modules | {label}))
    for less, rank in zip(predict_memory(job).ranks, predict_memory(more).ranks, strict=True):
        assert rank.kept <= less.kept


@settings(max_examples=80, deadline=None)
@given(jobs())
def test_a_reduction_inside_backward_needs_no_more_than_backward(job: Job) -> None:
    behind = replace(job, numerics=replace(job.numerics, overlap_grad_reduce=False))
    for rank, apart in zip(predict_memory(job).ranks, predict_memory(behind).ranks, strict=True):
        assert rank.first == apart.first
        assert rank.steady[Stage.GRAD_SYNC] >= apart.steady[Stage.GRAD_SYNC]
        assert rank.steady[Stage.GRAD_SYNC] <= max(rank.steady[Stage.BACKWARD], apart.steady[Stage.GRAD_SYNC])


@settings(max_examples=80, deadline=None)
@given(jobs())
def test_a_layer_left_in_bf16_keeps_at_least_as_much(job: Job) -> None:
    job = replace(job, numerics=replace(job.numerics, fp8_recipe="tensorwise"))
    kinds = tuple(replace(kind, unquantised=True) for kind in job.shapes.layers)
    plain = replace(job, shapes=replace(job.shapes, layers=kinds))
    for rank, wide in zip(predict_memory(job).ranks, predict_memory(plain).ranks, strict=True):
        assert rank.kept <= wide.kept
        assert wide.state.quantising == 0
        assert wide.state.parameters == rank.state.parameters


@settings(max_examples=60, deadline=None)
@given(jobs(), st.integers(1, 4))
def test_full_recompute_keeps_least(job: Job, layers: int) -> None:
    uniform = predict_memory(replace(job, recompute=Recompute("full", frozenset(), "uniform", layers)))
    block = predict_memory(replace(job, recompute=Recompute("full", frozenset(), "block", layers)))
    nothing = predict_memory(replace(job, recompute=Recompute("selective")))
    for full, some, none in zip(uniform.ranks, block.ranks, nothing.ranks, strict=True):
        assert full.kept <= none.kept
        assert some.kept <= none.kept


@settings(max_examples=60, deadline=None)
@given(jobs(), st.sampled_from([2, 3]))
def test_ranks_of_one_stage_agree(job: Job, times: int) -> None:
    """One answer stands for all ranks of a stage, however many replicas there are, each with its own micro-batches."""
    wider = replace(job.layout, world=job.layout.world * times)
    batch = replace(job.batch, global_batch=job.batch.global_batch * times)
    few, many = predict_memory(job).ranks, predict_memory(replace(job, layout=wider, batch=batch)).ranks
    assert [rank.pp_rank for rank in few] == [rank.pp_rank for rank in many] == list(range(job.layout.pp))
    for one, other in zip(few, many, strict=True):
        assert (one.kept, one.in_flight) == (other.kept, other.in_flight)
        assert one.state.parameters == other.state.parameters


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_tensors_add_up_to_what_forward_keeps(job: Job) -> None:
    prediction = predict_memory(job)
    assert sum(share.bytes for share in largest_tensors(job, prediction)) == prediction.hottest.kept


@settings(max_examples=30, deadline=None)
@given(jobs())
def test_a_saving_is_what_the_candidate_with_that_label_needs_less(job: Job) -> None:
    before = predict_memory(job).hottest
    for saving in savings(job):
        added = Recompute("selective", job.recompute.modules | {saving.label})
        after = predict_memory(replace(job, recompute=added)).ranks[before.pp_rank]
        assert saving.kept == before.kept - after.kept


@given(st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 3, 5]), st.integers(1, 4))
def test_earlier_pipeline_ranks_hold_at_least_as_many_microbatches(pp: int, chunks: int, rounds: int) -> None:
    held = [max(sum(mix) for mix in moments(pp, rank, chunks, rounds * pp).mixes) for rank in range(pp)]
    assert held == sorted(held, reverse=True)
    assert held[-1] >= 1
    assert held[0] <= rounds * pp * chunks


@given(st.integers(2, 8), st.integers(2, 4), st.integers(1, 4), st.data())
def test_an_interleaved_rank_holds_what_its_schedule_says(
    pp: int, chunks: int, rounds: int, data: st.DataObject
) -> None:
    """The schedule played, microbatch by microbatch: warm-up, a forward and a backward in turn, then what is left."""
    rank = data.draw(st.integers(0, pp - 1))
    order = [chunk for _ in range(rounds) for chunk in range(chunks) for _ in range(pp)]
    warmup = min(len(order), (pp - rank - 1) * 2 + (chunks - 1) * pp)
    steady = range(len(order) - warmup)
    played = [(1, chunk) for chunk in order[:warmup]]
    for number in steady:
        played += [(1, order[warmup + number]), (-1, chunks - 1 - order[number])]
    played += [(-1, chunks - 1 - chunk) for chunk in order[len(steady) :]]
    held, seen = [0] * chunks, {1: set(), -1: set()}
    for change, chunk in played:
        held[chunk] += max(0, change)
        seen[change].add((chunk, tuple(held)))
        held[chunk] += min(0, change)
        assert min(held) >= 0
    assert not any(held)
    found = moments(pp, rank, chunks, rounds * pp)
    for largest, every in ((found.forward, seen[1]), (found.backward, seen[-1])):
        assert set(largest) <= every
        for chunk, mix in every:
            assert any(chunk == other and all(map(int.__le__, mix, most)) for other, most in largest)
    assert set(found.mixes) <= {mix for _, mix in seen[1] | seen[-1]}
    assert all(any(all(map(int.__le__, mix, most)) for most in found.mixes) for _, mix in seen[1] | seen[-1])


def test_1f1b_holds_as_many_microbatches_as_there_are_stages_behind() -> None:
    assert [moments(4, rank, 1, 16).mixes for rank in range(4)] == [((4,),), ((3,),), ((2,),), ((1,),)]


def test_layers_that_do_not_divide_are_refused() -> None:
    job = Job(
        Shapes((LayerKind("gqa", "dense"),) * 5, 256, 512, 1024, attention=Attention(4, 4, 64)),
        Layout(world=2, pp=2), Numerics(), Batch(128, 1, 2), Recompute(),
    )  # fmt: skip
    with pytest.raises(CannotPredictError, match="5 layers do not divide over 2"):
        predict_memory(job)
