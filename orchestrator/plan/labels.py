"""The module labels of selective recompute: what each replays, what the model must have, which releases know it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.plan.installation import Installation
from orchestrator.plan.verdict import Revision


@dataclass(frozen=True)
class Label:
    """One word of `recompute_modules`."""

    name: str
    boundary: str
    """What is not kept and replayed instead."""
    needs: str
    """What the model must have for the label to be accepted and to act."""
    since: str = "0.12.0"
    """First Megatron Core release that allows it, as far as these were checked."""


LABELS: dict[str, Label] = {
    label.name: label
    for label in (
        Label("core_attn", "core attention", "attention; little to gain where the backend is fused or flash"),
        Label("layernorm", "the outputs of the two norms of a layer", "any layer; no FP8 with delayed scaling"),
        Label("mla_up_proj", "MLA's up-projection with RoPE", "model.multi_latent_attention=true"),
        Label("mlp", "the whole dense MLP", "at least one layer that is not MoE"),
        Label(
            "moe", "the whole MoE layer: routing, dispatch, experts, combine", "MoE layers; no expert-parallel overlap"
        ),
        Label(
            "moe_act",
            "the activation between the experts' two matrices",
            "MoE layers with model.moe_grouped_gemm=true; no FP8 with delayed scaling",
        ),
        Label(
            "shared_experts",
            "the shared experts",
            "model.moe_shared_expert_intermediate_size, and model.moe_shared_expert_overlap=false",
        ),
        Label(
            "gdn_norm_out",
            "the gated normalisation after a gated delta net",
            "model.experimental_attention_variant=gated_delta_net",
            since="0.17.0",
        ),
    )
}


def allowed_labels(revision: Revision) -> frozenset[str]:
    """What a revision allows: its own word where it was asked, else what is known of its release."""
    if revision.labels is not None:
        return revision.labels
    return frozenset(name for name, label in LABELS.items() if revision.at_least(label.since))


def ask_labels(installation: Installation, timeout: float = 180.0) -> Revision:
    """The revision that an installation has, with the labels that it says it allows.

    Raises:
        EnvironmentFailure: it has no Megatron Core, or one that does not say.
    """
    try:
        ended = subprocess.run(
            [installation.python, "-W", "ignore", "-c", _ASK],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=installation.environment(),
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"{installation.python} could not be asked for its labels: {error}") from error
    answer = next((line for line in reversed(ended.stdout.splitlines()) if line.startswith("{")), None)
    if ended.returncode or answer is None:
        said = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "it said nothing")
        place = installation.checkout or installation.python
        raise EnvironmentFailure(f"Megatron Core in {place} did not say which labels it allows: {said.strip()[:300]}")
    told = json.loads(answer)
    return Revision(str(told["version"]), frozenset(map(str, told["labels"])))


_ASK = """
import json
from orchestrator.trial.mcore_cpu.classes import import_classes
from orchestrator.trial.mcore_cpu.standins import install_for_torch
from orchestrator.trial.mcore_cpu.validation import megatron_core_version, module_labels
install_for_torch()
import_classes()
print()
print(json.dumps({"version": megatron_core_version(), "labels": list(module_labels())}))
"""
