"""Multi-token prediction and gated delta nets on one H200: a cut DeepSeek-V3 and a cut Qwen3-Next.

The runs of Qwen3-Next stopped in their first backward (a rule's kernel refused that release of Triton), so their peaks
are of the first micro-batch, before there was an optimizer's state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.compose import composing
from orchestrator.predict.job import Batch, Job, LayerKind, Layout, Numerics, Recompute, Shapes
from orchestrator.predict.memory import RankMemory, predict_memory
from orchestrator.predict.read import read_job
from orchestrator.predict.timing import cost_of
from orchestrator.vocabulary import Stage

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "h200_1gpu_mtp.jsonl").read_text().splitlines()
]
WITHIN = 0.001
"""Share of the measured peak, in every stage."""
COLD = ("qwen3_next_80b_a3b", "[]", "backward")
"""The first run of its kind on that machine: 1.3 GB more, as if the kernels of the loss's gradient, compiled then, were
timed on a copy of what they change (torch/_inductor/runtime/triton_heuristics.py). The next run did not need it."""


def name_of(row: dict[str, Any]) -> tuple[str, str]:
    return row["model"], row["overrides"][-1].partition("=")[2]


@pytest.fixture(scope="module")
def predicted() -> dict[tuple[str, str], RankMemory]:
    found = {}
    with composing() as composer:
        for row in ROWS:
            job = read_job(composer.compose(row["overrides"]), transformer_engine=row["transformer_engine"]).job
            (found[name_of(row)],) = predict_memory(job).ranks
    return found


def peaks(row: dict[str, Any], memory: RankMemory) -> Iterator[tuple[str, int, int]]:
    for key, stages in (("first", memory.first), ("later", memory.steady), ("stopped", memory.first)):
        for name, measured in row.get(key, {}).items():
            if name in list(Stage) and Stage(name) in stages and (*name_of(row), name) != COLD:
                yield f"{key} {name}", measured, stages[Stage(name)]


def test_both_models_were_measured() -> None:
    assert [name_of(row) for row in ROWS] == [
        ("deepseek_v3", "[]"),
        ("qwen3_next_80b_a3b", "[]"),
        ("qwen3_next_80b_a3b", "[moe]"),
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(name_of(row)))
def test_peaks_of_every_stage(row: dict[str, Any], predicted: dict[tuple[str, str], RankMemory]) -> None:
    found = list(peaks(row, predicted[name_of(row)]))
    assert len(found) == {"deepseek_v3": 9}.get(row["model"], 3 if "[moe]" in name_of(row) else 1)
    for stage, measured, expected in found:
        assert expected == pytest.approx(measured, rel=WITHIN), stage


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(name_of(row)))
def test_set_up(row: dict[str, Any], predicted: dict[tuple[str, str], RankMemory]) -> None:
    memory = predicted[name_of(row)]
    assert memory.first[Stage.MODEL_BUILD] == pytest.approx(max(row["setup"].values()), rel=WITHIN)


HIDDEN, VOCAB, TOKENS = 64, 1024, 32


def job(depths: int = 1, **changes: Any) -> Job:
    shapes = Shapes((LayerKind("gqa", "dense"),) * 4, HIDDEN, 4 * HIDDEN, VOCAB, mtp_layers=depths)
    base = Job(shapes, Layout(), Numerics(), Batch(TOKENS, 1, 8), Recompute("selective"))
    if "tied" in changes:
        base = replace(base, shapes=replace(shapes, tied=changes.pop("tied")))
    return replace(base, **changes)


def parameters(**changes: Any) -> list[int]:
    return [rank.state.parameters for rank in predict_memory(job(**changes)).ranks]


def test_every_depth_has_a_layer_a_projection_and_three_norms() -> None:
    (none,), (one,), (two,) = (parameters(depths=depths) for depths in range(3))
    layer = (none - 2 * VOCAB * HIDDEN - HIDDEN) // 4
    assert one - none == two - one == layer + 2 * HIDDEN * HIDDEN + 3 * HIDDEN


@pytest.mark.parametrize("tied", [False, True])
def test_the_last_stage_holds_it_all_and_a_copy_of_the_embeddings(tied: bool) -> None:
    layout = Layout(world=2, pp=2)
    first, last = parameters(layout=layout, tied=tied)
    plain_first, plain_last = parameters(layout=layout, tied=tied, depths=0)
    (none,), (one,) = parameters(depths=0), parameters()
    assert first == plain_first
    assert last - plain_last == one - none + VOCAB * HIDDEN


def test_a_layout_may_put_it_on_a_stage_of_its_own() -> None:
    stages = (("embedding", "decoder", "decoder"), ("decoder", "decoder"), ("mtp", "loss"))
    first, middle, last = parameters(layout=Layout(world=3, pp=3, stages=stages))
    plain = parameters(layout=Layout(world=3, pp=3, stages=(*stages[:2], ("loss",))), depths=0)
    (none,), (one,) = parameters(depths=0), parameters()
    # The final norm stays behind the last decoder layer.
    assert [first, middle - plain[1]] == [plain[0], HIDDEN]
    assert last - plain[2] == one - none + VOCAB * HIDDEN - HIDDEN


def test_an_output_layer_on_a_stage_of_its_own_keeps_every_depths_hidden_states() -> None:
    stages = (("embedding", "decoder", "decoder", "decoder", "decoder"), ("mtp",), ("loss",))
    layout = Layout(world=3, pp=3, stages=stages)
    last = {depths: predict_memory(job(depths, layout=layout)).ranks[2] for depths in (1, 2)}
    assert last[1].state.parameters == last[2].state.parameters == VOCAB * HIDDEN
    more = last[2].kept - last[1].kept
    assert 0 <= more - TOKENS * (HIDDEN + VOCAB) * 2 < TOKENS * HIDDEN


def test_full_recompute_keeps_two_streams_of_a_depth_and_block_keeps_all() -> None:
    stream = TOKENS * HIDDEN * 2
    uniform = Recompute("full", method="uniform", num_layers=1)
    block = Recompute("full", method="block", num_layers=4)
    selective = Recompute("selective")

    def added(depths: int, recompute: Recompute) -> int:
        several, fewer = (predict_memory(job(number, recompute=recompute)).ranks[0] for number in (depths, depths - 1))
        return several.kept - fewer.kept

    logits = TOKENS * VOCAB * 2
    # Both inputs, the hidden states that the output layer reads, logits; and rolled tokens, masks and losses.
    assert 0 <= added(2, uniform) - 3 * stream - logits < stream // 4
    assert added(1, block) == added(1, selective) > added(1, uniform) + 4 * stream


def test_gradients_of_embeddings_wait_for_their_last_use() -> None:
    """Two of them are there as backward ends; without multi-token prediction there is one."""
    large = {"batch": Batch(2, 1, 8)}
    with_it, without = (predict_memory(job(depths, **large)).ranks[0] for depths in (1, 0))
    over = [rank.first[Stage.BACKWARD] - rank.fixed for rank in (with_it, without)]
    assert over[0] - over[1] >= VOCAB * HIDDEN * 2


def test_operations_count_every_depth() -> None:
    assert cost_of(job(2)).flops - cost_of(job(1)).flops == cost_of(job(1)).flops - cost_of(job(0)).flops > 0
