"""Configurations for trainer mcore_cpu in tests, and what is known of them beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from orchestrator.config.compose import compose
from orchestrator.plan.candidate import trial_config

LABELS = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")

GROUPED = "model.moe_grouped_gemm=true"
"""`moe_act` acts on grouped experts only."""

TINY = (
    "training.seq_length=64",
    "training.micro_batch_size=1",
    "training.global_batch_size=4",
    "training.train_iters=2",
    # The recorder pauses inside the window only, and these steps are too short for its budget.
    "training.steady_window=[9,9]",
)

LAYOUTS: dict[str, tuple[str, ...]] = {
    "pp2": ("parallelism=two_stages",),
    "pp2-vpp2": ("parallelism=two_stages", "parallelism.vpp=2"),
    "ep2": ("parallelism=two_experts",),
    "dp2-overlap": (
        "parallelism=two_replicas",
        "trainer.overlap_grad_reduce=true",
        "trainer.overlap_param_gather=true",
    ),
    "tp2": ("parallelism=single", "parallelism.world_size=2", "parallelism.tp=2", "parallelism.sequence_parallel=true"),
    "tp2-ep2-etp1": (
        "parallelism=single",
        "parallelism.world_size=2",
        "parallelism.tp=2",
        "parallelism.sequence_parallel=true",
        "parallelism.ep=2",
        "parallelism.etp=1",
    ),
    "pp2-ep2": ("parallelism=two_stages", "parallelism.ep=2", "parallelism.world_size=4"),
    "tp2-pp2-ep2": (
        "parallelism=two_stages",
        "parallelism.tp=2",
        "parallelism.sequence_parallel=true",
        "parallelism.ep=2",
        "parallelism.world_size=8",
    ),
    "tp2-pp2-vpp2": (
        "parallelism=two_stages",
        "parallelism.vpp=2",
        "parallelism.tp=2",
        "parallelism.sequence_parallel=true",
        "parallelism.world_size=4",
    ),
    "pp4-dp2-overlap": (
        "parallelism=two_stages",
        "parallelism.pp=4",
        "parallelism.world_size=8",
        "trainer.overlap_grad_reduce=true",
        "trainer.overlap_param_gather=true",
    ),
}
"""Ways to spread the model over up to eight ranks."""


def config(*overrides: str) -> dict[str, Any]:
    """What a rank gets for these overrides, as the product composes it."""
    return trial_config(compose([*TINY, *overrides]))


def modules(labels: Sequence[str]) -> str:
    return f"recompute_modules=[{','.join(labels)}]"


CONTROL = "recompute=control"
EVERY_RECOMPUTE = (
    *(modules(labels) for size in (1, len(LABELS), 2) for labels in itertools.combinations(LABELS, size)),
    "recompute=full_uniform",
    "recompute=full_block",
)
"""Each label alone, all of them together, in pairs, and both full methods."""
