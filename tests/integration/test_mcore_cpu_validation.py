"""What trainer mcore_cpu refuses before anything runs, in the words of a user's settings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("megatron.core", reason="the cpu extra is not installed")

from mcore_settings import GROUPED, config

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcore_cpu_faults")]

REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown label": (
        ("recompute_modules=[moe_acts]",),
        ("'moe_acts'", "did you mean moe_act?", "core_attn, layernorm"),
    ),
    "label without its layers": (("recompute_modules=[moe_act]",), ("moe_act", "moe_grouped_gemm")),
    "label of another attention": (
        ("model=tiny_dense", "recompute_modules=[mla_up_proj]"),
        ("multi_latent_attention",),
    ),
    "batch": (
        ("training.global_batch_size=7", "training.micro_batch_size=2"),
        ("training.global_batch_size=7", "2 x 1"),
    ),
    "context parallel": (("parallelism.cp=2", "parallelism.world_size=4"), ("parallelism.cp=2", "trainer=bridge")),
    "fp8": (("precision.fp8=hybrid",), ("precision.fp8=hybrid", "Transformer Engine")),
    "cuda graphs": (("model.cuda_graph_impl=local",), ("model.cuda_graph_impl=local", "CUDA graphs")),
    "mamba": (("model.is_hybrid_model=true",), ("model.is_hybrid_model=True", "Mamba")),
    "gated delta net": (
        ("model.experimental_attention_variant=gated_delta_net",),
        ("model.experimental_attention_variant=gated_delta_net", "CUDA only", "trainer=bridge"),
    ),
    "fused attention": (("model.attention_backend=flash",), ("model.attention_backend=flash", "unfused")),
    "experts without sequence parallel": (
        ("parallelism=single", "parallelism.tp=2", "parallelism.world_size=2"),
        ("parallelism.sequence_parallel=true",),
    ),
    "layers over stages": (
        ("model.num_layers=5", "model.moe_layer_freq=1"),
        ("model.num_layers=5", "parallelism.layout"),
    ),
    "experts over ranks": (
        ("parallelism.ep=3", "parallelism.pp=1", "parallelism.world_size=3", "training.global_batch_size=3"),
        ("model.num_moe_experts=4", "parallelism.ep=3"),
    ),
    "microbatches over virtual stages": (
        ("parallelism.vpp=2", "training.global_batch_size=3"),
        ("parallelism.vpp=2", "multiple of pp=2"),
    ),
    "virtual stages without a pipeline": (("parallelism=single", "parallelism.vpp=2"), ("parallelism.pp",)),
    "ranks": (("parallelism.world_size=3",), ("parallelism.world_size=3", "tp*pp*cp=2")),
    "layer pattern": (("model.moe_layer_freq=[0,1]",), ("model.moe_layer_freq has 2 entries",)),
    "selective with a layer count": (("recompute_num_layers=1",), ("recompute_num_layers must be None",)),
    "full without a method": (("recompute_granularity=full",), ("recompute_method",)),
    "activation": (("model.activation_func=sulu",), ("model.activation_func=sulu", "silu")),
    "fault": (("trainer.fault={stage:forwards,kind:oom}",), ("trainer.fault.stage=forwards",)),
    "fault without a stage": (("trainer.fault={kind:oom}",), ("trainer.fault", "stage")),
    "fault of a rank that is no number": (
        ("trainer.fault={stage:forward,kind:oom,rank:a}",),
        ("trainer.fault.rank=a", "whole number"),
    ),
    "no expert tensor parallelism": (("parallelism.etp=0",), ("parallelism.etp=0", "above zero")),
    "no virtual stage": (("parallelism.vpp=0",), ("parallelism.vpp=0", "above zero")),
    "one virtual stage": (("parallelism.vpp=1",), ("parallelism.vpp=1", "null")),
    "no heads": (("model.num_attention_heads=0",), ("model.num_attention_heads=0", "above zero")),
    "no vocabulary": (("model.vocab_size=0",), ("model.vocab_size=0", "above zero")),
    "more experts chosen than there are": (
        ("model.moe_router_topk=5",),
        ("model.moe_router_topk=5", "model.num_moe_experts=4"),
    ),
    "experts never": (("model.moe_layer_freq=0",), ("model.moe_layer_freq=0",)),
    "odd rotary dimension": (("model.qk_pos_emb_head_dim=15",), ("model.qk_pos_emb_head_dim=15", "even")),
    "grouped experts with a bias": (
        ("model=tiny_moe", "model.add_bias_linear=true", GROUPED),
        ("model.add_bias_linear=true", "model.moe_grouped_gemm=true"),
    ),
    "shared experts with a bias": (("model.add_bias_linear=true",), ("model.add_bias_linear=true", "shared experts")),
    "layers replayed together that do not come out even": (
        ("recompute=full_uniform", "recompute_num_layers=3"),
        ("recompute_num_layers=3", "a pipeline stage has 2"),
    ),
    "no layers to replay": (("recompute=full_block", "recompute_num_layers=0"), ("recompute_num_layers=0",)),
}


def ask(questions: dict[str, dict[str, Any]], trainer: str = "mcore_cpu") -> dict[str, dict[str, Any]]:
    lines = [
        json.dumps(
            {"id": name, "trainer": trainer, "config": asked, "world_size": asked["parallelism"].get("world_size")}
        )
        for name, asked in questions.items()
    ]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "orchestrator.trial.validate"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    return {answer["id"]: answer for answer in map(json.loads, ended.stdout.splitlines())}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    return ask({name: config(*overrides) for name, (overrides, _) in REFUSED.items()})


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_the_setting_and_what_would(
    answers: dict[str, dict[str, Any]], name: str
) -> None:
    answer = answers[name]
    assert answer["ok"] is False
    for words in REFUSED[name][1]:
        assert words in answer["message"]
    assert "\n" not in answer["message"]
    assert "not a question" not in answer["message"]


def test_thousands_are_answered_by_one_process() -> None:
    asked = config()
    started = time.monotonic()
    found = ask({str(number): asked for number in range(2000)})
    assert len(found) == 2000
    assert all(answer["ok"] for answer in found.values())
    assert time.monotonic() - started < 60
    one = found["0"]
    assert one["software"]["megatron_core"]["version"]


def test_a_line_that_is_no_question_is_answered_and_the_next_one_too() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "orchestrator.trial.validate"],
        input="no json\n\n" + json.dumps({"id": "next", "trainer": "mcore_cpu", "config": config()}) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = map(json.loads, ended.stdout.splitlines())
    assert (first["id"], first["ok"]) == (None, False)
    assert (second["id"], second["ok"]) == ("next", True)


def test_what_nobody_foresaw_costs_only_its_own_candidate() -> None:
    asked = config()
    found = ask({"broken": {**asked, "trainer": {"fault": 5}}, "next": asked})
    assert [found[name]["ok"] for name in ("broken", "next")] == [False, True]


def test_of_a_recipe_only_the_four_settings_are_checked() -> None:
    base = config("trainer=bridge", "model.recipe=some.recipe")
    wrong = {**base, "recompute_granularity": "selective", "recompute_modules": ["moe_acts"]}
    right = {**base, "recompute_granularity": "selective", "recompute_modules": ["moe_act"]}
    found = ask({"recipe": base, "wrong": wrong, "right": right}, "bridge")
    assert [found[name]["ok"] for name in ("recipe", "wrong", "right")] == [True, False, True]
    assert "recompute_modules" in found["recipe"]["open"]
    assert "multi_latent_attention" in found["right"]["open"]
