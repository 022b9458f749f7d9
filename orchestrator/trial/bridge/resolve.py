"""What a recipe means: `python -m orchestrator.trial.bridge.resolve`, run once where Bridge can be imported.

Reads one JSON line per question on stdin, `{"id", "config", "world_size"}`, and answers one line each, as
`orchestrator.trial.validate` does: Bridge's own verdict, the configuration after its validation, and under `resolved`
the recipe's parallelism and batch and its environment variables. `open` lists what cannot be said without a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from orchestrator.records.jsonfile import encode
from orchestrator.trial.bridge.effective import effective_configuration
from orchestrator.trial.bridge.recipe import RecipeError, build, world_size_of
from orchestrator.trial.software import software

PACKAGES = ("megatron.bridge", "megatron.core", "transformer_engine")

_PARALLELISM = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "sequence_parallel": "sequence_parallel",
    "layout": "pipeline_model_parallel_layout",
}


def resolve(config: dict[str, Any], world_size: int | None) -> dict[str, Any]:
    """The answer for one configuration. `world_size` None: the fewest ranks that the recipe can run on.

    Returns:
        `ok`, `message` (what was refused, in the framework's words), `open`, `effective`, `estimate` (Bridge's own, in
        bytes), and `resolved` with `parallelism`, `training` and `environment`.
    """
    refusal: dict[str, Any] = {"resolved": None, "effective": None, "open": []}
    try:
        container = build(config)
    except RecipeError as error:
        return {"ok": False, "message": str(error), **refusal}
    except (AssertionError, RuntimeError) as error:
        # Some recipes choose by the GPU's generation (apply_flex_dispatcher_backend) and need one to be built at all.
        if not _lacks_a_gpu():
            raise
        return {**refusal, "ok": True, "message": None, "open": [f"{NEEDS_A_GPU} ({error})"]}
    ranks = world_size or world_size_of(container)
    resolved = {
        "parallelism": {**{key: getattr(container.model, name, None) for key, name in _PARALLELISM.items()}},
        "training": {
            "seq_length": container.model.seq_length,
            "micro_batch_size": container.train.micro_batch_size,
            "global_batch_size": container.train.global_batch_size,
        },
        "environment": {name: str(value) for name, value in (getattr(container, "env_vars", None) or {}).items()},
    }
    resolved["parallelism"]["world_size"] = ranks
    verdict = _verdict(container, ranks)
    return {
        **verdict,
        "resolved": resolved,
        "effective": effective_configuration(container, []),
        "estimate": _estimate(container),
    }


def _estimate(container: Any) -> dict[str, int | None] | None:
    """Bytes by Bridge's own estimator; None where this Bridge has none, or it cannot read the model.

    Its formula for activations assumes sequence parallelism and selective recompute (`report_theoretical_memory`).
    """
    try:
        estimator = importlib.import_module("megatron.bridge.training.utils.theoretical_memory_utils")
        weights = estimator.compute_weight_and_optimizer_memory(container)
        model, activations = container.model, None
        if model.sequence_parallel and model.recompute_granularity == "selective":
            activations = estimator.compute_activation_memory(container, num_microbatches=None)
    except (ImportError, AttributeError, TypeError, ArithmeticError):
        return None
    return {"weights_and_optimizer": int(weights), "activations": None if activations is None else int(activations)}


NEEDS_A_GPU = "this recipe can only be built where a GPU is"


def _verdict(container: Any, ranks: int) -> dict[str, Any]:
    """Bridge's own validation, which also finishes the configuration. It reads the world size from the environment."""
    training = importlib.import_module("megatron.bridge.training.config")
    with _environment(RANK="0", WORLD_SIZE=str(ranks), LOCAL_RANK="0"):
        try:
            training.runtime_config_update(container)
        except Exception as error:  # noqa: BLE001  assertions, ValueErrors and TypeErrors are all refusals
            frame = traceback.extract_tb(error.__traceback__)[-1]
            if _lacks_a_gpu() and frame.name == "_lazy_init":
                return {"ok": True, "message": None, "open": [f"{NEEDS_A_GPU} ({error})"]}
            where = f"{Path(frame.filename).name}, {frame.name}"
            return {"ok": False, "message": f"{str(error) or type(error).__name__} ({where})", "open": []}
    return {"ok": True, "message": None, "open": []}


def _lacks_a_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


@contextlib.contextmanager
def _environment(**variables: str) -> Any:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def main() -> int:
    """Answer every line of stdin on stdout; whatever the framework prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    importlib.import_module("megatron.bridge.training.config")
    found = software(PACKAGES)
    for line in sys.stdin:
        question = json.loads(line)
        answer = {
            "id": question.get("id"),
            **resolve(question["config"], question.get("world_size")),
            "software": found,
        }
        answers.write(json.dumps(encode(answer)) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
