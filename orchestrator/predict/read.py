"""A job from what was asked, or from what the framework made of it (the effective configuration)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.predict.build import Sections, build_job
from orchestrator.predict.huggingface import megatron_fields
from orchestrator.predict.job import Job
from orchestrator.predict.problem import CannotPredictError

_RECIPE = "recipe"
_RECOMPUTE = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")
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
_OPTIMIZER = (
    "use_precision_aware_optimizer",
    "main_grads_dtype",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
)
_BRIDGE_MODEL = {
    "cross_entropy_loss_fusion": True,
    "cross_entropy_fusion_impl": "te",
    "gradient_accumulation_fusion": True,
    "bias_activation_fusion": True,
    "moe_grouped_gemm": True,
    "transformer_impl": "transformer_engine",
}
"""What Bridge 0.3.1's recipes set alike, taken where no effective configuration is known."""


@dataclass(frozen=True)
class Reading:
    """A job, and what had to be assumed to get it."""

    job: Job
    assumed: tuple[str, ...] = ()


def read_job(request: Mapping[str, Any], effective: Mapping[str, Any] | None = None) -> Reading:
    """The job of a requested configuration (`TrialSpec.config`, or a composed request).

    `effective` is the configuration of a sibling after the framework finished it: whatever the request leaves to the
    recipe is taken from there. The four recompute settings are the request's, unless it leaves them to the recipe.

    Raises:
        CannotPredictError: a size is missing, and nothing says it.
    """
    trainer = _group(request, "trainer")
    if effective is None:
        return _from_request(request, trainer)
    sections = _sections(effective)
    sections.model.update(_given_model(request))
    sections.model.update({key: request[key] for key in _RECOMPUTE if key in request and request[key] != _RECIPE})
    training = _given(_group(request, "training"))
    sections.train.update({key: training[key] for key in training if key.endswith("batch_size")})
    if "seq_length" in training:
        sections.model["seq_length"] = training["seq_length"]
    world = _given(_group(request, "parallelism")).get("world_size")
    _override(sections, trainer.get("overrides"))
    return Reading(build_job(sections, int(world) if world is not None else None))


def read_effective(effective: Mapping[str, Any], world_size: int | None = None) -> Job:
    """The job of an effective configuration: Bridge's ConfigContainer, or what mcore_cpu records in its place.

    Raises:
        CannotPredictError: a size is missing.
    """
    return build_job(_sections(effective), world_size)


def _sections(effective: Mapping[str, Any]) -> Sections:
    precision = _group(effective, "mixed_precision")
    model = dict(_group(effective, "model"))
    if precision.get("fp8") is not None and model.get("fp8") is None:
        model |= {"fp8": precision["fp8"], "fp8_recipe": precision.get("fp8_recipe")}
    trainer = _group(effective, "trainer")
    return Sections(
        model=model,
        optimizer=dict(_group(effective, "optimizer")),
        ddp=dict(_group(effective, "ddp")),
        train=dict(_group(effective, "train")),
        trainer=str(trainer.get("name") or "bridge"),
    )


def _from_request(request: Mapping[str, Any], trainer: Mapping[str, Any]) -> Reading:
    name = str(trainer.get("name") or "mcore_cpu")
    given_model = _group(request, "model")
    published = given_model.get("huggingface_config")
    model: dict[str, Any] = dict(_BRIDGE_MODEL) if name == "bridge" else {}
    assumed: list[str] = []
    if isinstance(published, Mapping):
        model |= megatron_fields(published)
    if name == "bridge" and not ("num_layers" in model or "num_layers" in _given_model(request)):
        raise CannotPredictError(
            "The recipe alone knows this model's sizes. Ask for its resolved configuration first (a run records it), "
            "or set model.huggingface_config."
        )
    model |= _given_model(request)
    precision = _given(_group(request, "precision"))
    training = _given(_group(request, "training"))
    if name == "bridge":
        for key in ("params_dtype", "grad_reduce_in_fp32", "use_precision_aware_optimizer", "exp_avg_dtype"):
            if key not in precision:
                assumed.append(f"precision.{key} is the recipe's: Megatron Bridge's bf16_mixed was taken")
        for key in ("seq_length", "micro_batch_size", "global_batch_size"):
            if key not in training:
                raise CannotPredictError(f"training.{key} is left to a recipe, so there is nothing to count with.")
        for key in _PARALLELISM:
            if _group(request, "parallelism").get(key) == _RECIPE:
                assumed.append(f"parallelism.{key} is the recipe's: Megatron Core's default was taken")
    dtype = precision.get("params_dtype", "bf16" if name == "bridge" else "fp32")
    model |= {"params_dtype": dtype, "fp8": precision.get("fp8"), "fp8_recipe": precision.get("fp8_recipe")}
    recipe_name = precision.get("recipe_name")
    if recipe_name and "fp8" in recipe_name:
        model |= {"fp8": "hybrid", "fp8_recipe": _fp8_recipe(recipe_name)}
    model |= {key: request.get(key) for key in _RECOMPUTE if request.get(key) != _RECIPE}
    if request.get(_RECOMPUTE[0]) == _RECIPE:
        assumed.append("recompute settings are the recipe's: none was taken")
    model["seq_length"] = training.get("seq_length")
    distributed = trainer.get("use_distributed_optimizer")
    sections = Sections(
        model=model,
        optimizer={key: precision[key] for key in _OPTIMIZER if key in precision} if name == "bridge" else {},
        ddp={
            "grad_reduce_in_fp32": precision.get("grad_reduce_in_fp32", True),
            "use_distributed_optimizer": True if distributed is None else distributed,
        },
        train=dict(training),
        trainer=name,
    )
    _override(sections, trainer.get("overrides"))
    world = _given(_group(request, "parallelism")).get("world_size", 1)
    return Reading(build_job(sections, int(world)), tuple(assumed))


def _given_model(request: Mapping[str, Any]) -> dict[str, Any]:
    model = _given(_group(request, "model"))
    for key in ("name", "recipe", "recipe_arguments", "huggingface_config"):
        model.pop(key, None)
    layout = _given(_group(request, "parallelism"))
    return model | {ours: layout[key] for key, ours in _PARALLELISM.items() if key in layout}


def _override(sections: Sections, overrides: Any) -> None:
    if not isinstance(overrides, Mapping):
        return
    groups = {"model": sections.model, "optimizer": sections.optimizer, "ddp": sections.ddp, "train": sections.train}
    for path, value in overrides.items():
        head, _, rest = str(path).partition(".")
        if head in groups and rest:
            groups[head][rest] = value
        elif head in groups and isinstance(value, Mapping):
            groups[head].update(value)


def _fp8_recipe(name: str) -> str:
    for word in ("delayed", "mxfp8", "blockwise", "current"):
        if word in name:
            return {"current": "tensorwise"}.get(word, word)
    return "tensorwise"


def _given(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if value != _RECIPE}


def _group(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = mapping.get(name)
    return value if isinstance(value, Mapping) else {}
