"""Configurations for trainer mcore_cpu in tests, and what is known of them beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.config.compose import compose
from orchestrator.plan.candidate import trial_config

LABELS = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")

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
}
"""Ways to spread the model over up to eight ranks."""


def config(*overrides: str) -> dict[str, Any]:
    """What a rank gets for these overrides, as the product composes it."""
    return trial_config(compose([*TINY, *overrides]))


def modules(labels: Sequence[str]) -> str:
    return f"recompute_modules=[{','.join(labels)}]"


def replays(labels: Sequence[str], dense: int, moe: int) -> int:
    """Replayed forwards of one microbatch through `dense` dense layers and `moe` layers with experts, all MLA."""
    every = dense + moe
    times = {
        "core_attn": every,
        "mla_up_proj": every,
        "layernorm": 2 * every,
        "mlp": dense,
        "moe": moe,
        "moe_act": moe,
        "shared_experts": moe,
    }
    return sum(times[label] for label in labels)


def replays_of_trial(config: dict[str, Any], labels: Sequence[str], dense: int = 1, moe: int = 3) -> int:
    """Replays of all ranks of a trial of the default model, over all iterations."""
    layout, training = config["parallelism"], config["training"]
    model_ranks = layout["tp"] * layout["pp"]
    replicas = layout["world_size"] // model_ranks
    microbatches = training["global_batch_size"] // (training["micro_batch_size"] * replicas)
    pipelines = layout["world_size"] // layout["pp"]
    return replays(labels, dense, moe) * microbatches * training["train_iters"] * pipelines
