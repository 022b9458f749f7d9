"""A job from what was asked, or from what the framework made of it (the effective configuration)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.predict.build import Sections, build_job
from orchestrator.predict.fields import FP8_LAYERS
from orchestrator.predict.huggingface import megatron_fields
from orchestrator.predict.job import Job
from orchestrator.predict.ledger import DISCARDS, REGIONS
from orchestrator.predict.optimizer import COPIES_ASSUMED
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.recipes import DEFAULT, LOCKED_ENGINES, REVISION, Recipe, recipe_of

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

FP8_MEASURED = (
    "in FP8 one dense model on one H200 was measured, with current scaling (every stage within 0.05%, "
    "with terms written after it); other scalings, "
    "experts in FP8, ranks that share weights, and cards that multiply FP8 without transposes were not"
)


@dataclass(frozen=True)
class Reading:
    """A job, and what had to be assumed to get it."""

    job: Job
    assumed: tuple[str, ...] = ()


def read_job(
    request: Mapping[str, Any], effective: Mapping[str, Any] | None = None, transformer_engine: str | None = None
) -> Reading:
    """The job of a requested configuration (`TrialSpec.config`, or a composed request).

    `effective` is the configuration of a sibling after the framework finished it: whatever the request leaves to the
    recipe is taken from there. The four recompute settings are the request's, unless it leaves them to the recipe.
    `transformer_engine` is the release that will run, where somebody says it.

    Raises:
        CannotPredictError: a size is missing, and nothing says it.
    """
    trainer = _group(request, "trainer")
    if effective is None:
        return _from_request(request, trainer, transformer_engine)
    sections = _sections(effective)
    sections.transformer_engine = transformer_engine or sections.transformer_engine
    given = _given_model(request)
    _fit_to(sections.model, given)
    sections.model.update(given)
    sections.model.update({key: request[key] for key in _RECOMPUTE if key in request and request[key] != _RECIPE})
    training = _given(_group(request, "training"))
    sections.train.update({key: training[key] for key in training if key.endswith("batch_size")})
    if "seq_length" in training:
        sections.model["seq_length"] = training["seq_length"]
    precision = _given(_group(request, "precision"))
    if sections.trainer == "bridge":
        sections.optimizer.update({key: precision[key] for key in _OPTIMIZER if key in precision})
    if "params_dtype" in precision:
        sections.model["params_dtype"] = precision["params_dtype"]
    if "grad_reduce_in_fp32" in precision:
        sections.ddp["grad_reduce_in_fp32"] = precision["grad_reduce_in_fp32"]
    _override(sections, trainer.get("overrides"))
    return _reading(sections, _world(request) or _number(sections.train.get("world_size")), [])


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
        model |= {key: precision.get(key) for key in FP8_LAYERS}
    trainer = _group(effective, "trainer")
    return Sections(
        model=model,
        optimizer=dict(_group(effective, "optimizer")),
        ddp=dict(_group(effective, "ddp")),
        train=dict(_group(effective, "train")),
        trainer=str(trainer.get("name") or "bridge"),
        transformer_engine=_version(_group(effective, "software").get("transformer_engine")),
    )


def _from_request(request: Mapping[str, Any], trainer: Mapping[str, Any], engine: str | None) -> Reading:
    name = str(trainer.get("name") or "mcore_cpu")
    if name == "bridge":
        sections, assumed = _of_recipe(request, said=engine is not None)
        sections.transformer_engine = engine or sections.transformer_engine
    else:
        sections, assumed = Sections({}, ddp={"grad_reduce_in_fp32": True}, trainer=name), []
        sections.ddp["use_distributed_optimizer"] = True
    model, precision = sections.model, _given(_group(request, "precision"))
    model |= _given_model(request)
    dtype = precision.get("params_dtype", "bf16" if name == "bridge" else "fp32")
    model |= {"params_dtype": dtype, "fp8": precision.get("fp8"), "fp8_recipe": precision.get("fp8_recipe")}
    _mixed_precision(sections, precision)
    model |= {key: request.get(key) for key in _RECOMPUTE if request.get(key) != _RECIPE}
    training = _given(_group(request, "training"))
    if "seq_length" in training:
        model["seq_length"] = training["seq_length"]
    sections.train |= training
    if name == "bridge":
        sections.optimizer |= {key: precision[key] for key in _OPTIMIZER if key in precision}
    if "grad_reduce_in_fp32" in precision:
        sections.ddp["grad_reduce_in_fp32"] = precision["grad_reduce_in_fp32"]
    if trainer.get("use_distributed_optimizer") is not None:
        sections.ddp["use_distributed_optimizer"] = trainer["use_distributed_optimizer"]
    if trainer.get("force_load_balancing"):
        model["moe_router_force_load_balancing"] = True
    _override(sections, trainer.get("overrides"))
    return _reading(sections, _world(request), assumed)


def _of_recipe(request: Mapping[str, Any], *, said: bool) -> tuple[Sections, list[str]]:
    """What a recipe is taken to set, before the request's own settings. `said`: somebody names the engine."""
    asked = _group(request, "model")
    found = recipe_of(asked.get("recipe"))
    known = found[1] if found else Recipe({})
    published = asked.get("huggingface_config")
    model = dict(DEFAULT.model)
    if isinstance(published, Mapping):
        model |= megatron_fields(published)
    model |= known.model
    given = _given_model(request)
    if not ("num_layers" in model or "num_layers" in given):
        raise CannotPredictError(
            "The recipe alone knows this model's sizes. Ask for its resolved configuration first (a run records it), "
            "or set model.huggingface_config."
        )
    assumed = [_assumption(found, request)] if _left_open(request) else []
    _fit_to(model, given)
    engine = LOCKED_ENGINES.get(str(_group(request, "revisions").get("bridge")))
    if engine is not None and not said:
        assumed.append(f"Transformer Engine {engine}, as the lock file of the pinned Megatron Bridge has it")
    sections = Sections(
        model=model,
        optimizer={**DEFAULT.optimizer, **known.optimizer},
        ddp={**DEFAULT.ddp, **known.ddp},
        train={**DEFAULT.train, **known.train} if found else {},
        trainer="bridge",
        transformer_engine=engine,
        comm_overlap=known.comm_overlap,
    )
    return sections, assumed


def _left_open(request: Mapping[str, Any]) -> list[str]:
    """Settings that the request leaves to the recipe, of those that a prediction reads."""
    names = {
        "precision": ("params_dtype", "grad_reduce_in_fp32", "use_precision_aware_optimizer", "exp_avg_dtype"),
        "training": ("seq_length", "micro_batch_size", "global_batch_size"),
        "parallelism": tuple(_PARALLELISM),
    }
    left: list[str] = []
    for section, keys in names.items():
        given = _group(request, section)
        missing = [f"{section}.{key}" for key in keys if given.get(key, _RECIPE) == _RECIPE]
        left += [f"all of {section}"] if len(missing) == len(keys) else missing
    return left + [key for key in _RECOMPUTE[:1] if request.get(key, _RECIPE) == _RECIPE]


def _assumption(found: tuple[str, Recipe] | None, request: Mapping[str, Any]) -> str:
    left = ", ".join(_left_open(request))
    if found is None:
        return f"left to a recipe that is not known here, so {REVISION}'s bf16_mixed and one rank of each: {left}"
    return f"taken as {found[0]} of {REVISION} has them: {left}"


def _fit_to(model: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Make what a recipe derives from other settings follow those that the request changes."""
    layers, kinds = given.get("num_layers"), model.get("moe_layer_freq")
    if isinstance(layers, int) and isinstance(kinds, list) and kinds and "moe_layer_freq" not in given:
        # Dense layers come first in every published model; the last kind goes on.
        model["moe_layer_freq"] = (kinds + [kinds[-1]] * layers)[:layers]
    if given.keys() & {"num_layers", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"}:
        model.pop("pipeline_model_parallel_layout", None)


def _mixed_precision(sections: Sections, precision: Mapping[str, Any]) -> None:
    """A mixed-precision recipe by name, as `MixedPrecisionConfig.setup` applies it to model, optimizer and DDP."""
    name = str(precision.get("recipe_name") or "").replace("-", "_")
    if not name:
        if sections.trainer == "bridge" and precision.get("fp8_recipe"):
            sections.optimizer["fp8_recipe"] = precision["fp8_recipe"]
        return
    sections.ddp["grad_reduce_in_fp32"] = True
    if "fp8" in name:
        recipe = _fp8_recipe(name)
        # FP8 weights but with sub-channel scaling; BF16 at both ends with current scaling alone (mixed_precision.py).
        at_ends = 2 if name.startswith(("nemotron_h", "nanov2")) else 1
        sections.model |= {
            "fp8": "hybrid",
            "fp8_recipe": recipe,
            "fp8_param": "subchannel" not in name,
            "first_last_layers_bf16": "current" in name,
            "num_layers_at_start_in_bf16": at_ends,
            "num_layers_at_end_in_bf16": at_ends,
        }
        sections.optimizer["fp8_recipe"] = recipe


def _world(request: Mapping[str, Any]) -> int | None:
    world = _given(_group(request, "parallelism")).get("world_size")
    return int(world) if isinstance(world, int) and not isinstance(world, bool) else None


def _reading(sections: Sections, world: int | None, assumed: list[str]) -> Reading:
    job = build_job(sections, world)
    if world is None:
        assumed.append(
            f"parallelism.world_size is not said: the fewest ranks that this layout takes, {job.layout.world}"
        )
    if job.numerics.copies_moments and sections.transformer_engine is None:
        assumed.append(COPIES_ASSUMED)
    if job.numerics.fp8:
        assumed.append(FP8_MEASURED)
    unknown = sorted(job.recompute.modules - DISCARDS - REGIONS)
    if unknown:
        assumed.append(f"the ledger knows no boundary {', '.join(unknown)}: taken to change nothing")
    return Reading(job, tuple(assumed))


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
    for word in ("delayed", "mxfp8", "blockwise", "subchannel", "nanov2", "current"):
        if word in name:
            return {"current": "tensorwise", "subchannel": "blockwise", "nanov2": "blockwise"}.get(word, word)
    return "tensorwise"


def _version(found: Any) -> str | None:
    """A version out of a record's account of its software, or as it stands."""
    if isinstance(found, Mapping):
        found = found.get("version")
    return None if found is None else str(found)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _given(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if value != _RECIPE}


def _group(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = mapping.get(name)
    return value if isinstance(value, Mapping) else {}
