"""Turns a requested configuration into Megatron Bridge's ConfigContainer.

The recipe is NVIDIA's own, found by its dotted name; what the request changes goes through Bridge's own override
mechanism. Checked against Megatron Bridge 0.3.1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import inspect
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECIPE = "recipe"

_PARALLELISM = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "sequence_parallel": "model.sequence_parallel",
    "layout": "model.pipeline_model_parallel_layout",
}
_TRAINING = {
    "micro_batch_size": ("train.micro_batch_size",),
    "global_batch_size": ("train.global_batch_size",),
    "train_iters": ("train.train_iters",),
    "seed": ("rng.seed",),
}
_OPTIMIZER_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
_NOT_A_FIELD = frozenset({"name", "recipe", "recipe_arguments", "huggingface_config"})
_CALLABLE_MODEL_FIELDS = {"activation_func": {"silu": "torch.nn.functional.silu", "gelu": "torch.nn.functional.gelu"}}

_MEASUREMENT_SETTINGS = {
    "checkpoint.save": None,
    "checkpoint.load": None,
    "checkpoint.save_interval": 0,
    "train.eval_iters": 0,
    "train.exit_interval": None,
    "train.exit_duration_in_mins": None,
    "logger.log_interval": 1,
    "logger.tensorboard_dir": None,
    "logger.wandb_project": None,
    "logger.wandb_exp_name": None,
    "logger.mlflow_experiment": None,
    "logger.save_config_filepath": None,
}
"""Neither part of a measured step: a base recipe saves to and resumes from ./nemo_experiments, so a second run from
the same folder would train no step at all. A path that a revision lacks is left out."""


class RecipeError(ValueError):
    """The request cannot be turned into a configuration of this revision. The message says what would work."""


def build(config: dict[str, Any]) -> Any:
    """The ConfigContainer that the request asks for, before Bridge has finished and validated it.

    Args:
        config: `TrialSpec.config`.

    Raises:
        RecipeError: an unknown recipe, argument, path or value.
    """
    container = _base(config["model"])
    if config["trainer"].get("force_load_balancing"):
        config = {**config, "model": {**config["model"], "moe_router_force_load_balancing": True}}
    _apply(container, _present(container, _MEASUREMENT_SETTINGS))
    _apply_precision(container, config["precision"])
    _apply(container, requested_overrides(container, config))
    _set_callables(container, config["model"])
    _apply(container, _data(container, config["trainer"]))
    _apply(container, dict(config["trainer"].get("overrides") or {}))
    return container


def requested_overrides(container: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Dotted path into the ConfigContainer and value, for every setting that is not left as the recipe has it."""
    found: dict[str, Any] = {}
    for key, value in config["model"].items():
        if key not in _NOT_A_FIELD and key not in _CALLABLE_MODEL_FIELDS and value != RECIPE:
            found[f"model.{key}"] = value
    for key, path in _PARALLELISM.items():
        value = config["parallelism"].get(key, RECIPE)
        if value != RECIPE:
            found[path] = value
    for key, paths in _TRAINING.items():
        value = config["training"].get(key, RECIPE)
        if value != RECIPE:
            found.update(dict.fromkeys(paths, value))
    sequence = config["training"].get("seq_length", RECIPE)
    if sequence != RECIPE:
        found["model.seq_length"] = sequence
        found[_sequence_path(container)] = sequence
    for key in ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers"):
        value = config.get(key, RECIPE)
        if value != RECIPE:
            found[f"model.{key}"] = value
    return found


def world_size_of(container: Any) -> int:
    """The fewest ranks that the recipe's parallelism can run on: one data-parallel replica of it."""
    model = container.model
    dense = model.tensor_model_parallel_size * model.pipeline_model_parallel_size * model.context_parallel_size
    expert_tensor = getattr(model, "expert_tensor_parallel_size", None) or model.tensor_model_parallel_size
    expert = expert_tensor * model.expert_model_parallel_size * model.pipeline_model_parallel_size
    return math.lcm(dense, expert)


def _base(model: dict[str, Any]) -> Any:
    name = model.get("recipe")
    if not name:
        raise RecipeError(
            "model.recipe names no recipe; set it to the dotted name of one, for example "
            "megatron.bridge.recipes.moonlight.moonlight_16b.moonlight_16b_pretrain_config, or choose a model preset"
        )
    function = _find(name)
    arguments = dict(model.get("recipe_arguments") or {})
    with _local_shapes(model.get("huggingface_config")) as asked:
        if inspect.isclass(function):
            return _around_provider(function, arguments)
        _check_arguments(function, name, arguments)
        container = function(**arguments)
    if asked and hasattr(container.model, "hf_model_id"):
        # Not the temporary folder: Bridge's FLOP count knows some models by this name.
        container.model.hf_model_id = asked[-1]
    return container


def _find(name: str) -> Any:
    module_name, _, attribute = name.rpartition(".")
    if not module_name:
        raise RecipeError(f"model.recipe={name} is not a dotted name such as package.module.function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise
        raise RecipeError(f"model.recipe={name}: there is no module {error.name or module_name}") from error
    if hasattr(module, attribute):
        return getattr(module, attribute)
    public = [item for item in dir(module) if callable(getattr(module, item)) and not item.startswith("_")]
    raise RecipeError(f"model.recipe={name}: {module_name} has no {attribute}{_nearest(attribute, public)}")


def _check_arguments(function: Any, name: str, arguments: dict[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        known = ", ".join(inspect.signature(function).parameters) or "none"
        raise RecipeError(f"model.recipe_arguments: {name} does not take them ({error}); it takes: {known}") from error


def _around_provider(provider: Any, arguments: dict[str, Any]) -> Any:
    """A model provider inside Bridge's own common pretraining configuration."""
    common = importlib.import_module("megatron.bridge.recipes.common")
    container = common._pretrain_common()
    known = {field.name for field in dataclasses.fields(provider)}
    for key in arguments:
        if key not in known:
            raise RecipeError(
                f"model.recipe_arguments.{key}: {provider.__name__} has no such field{_nearest(key, known)}"
            )
    container.model = provider(**arguments)
    container.tokenizer.tokenizer_type = "NullTokenizer"
    container.tokenizer.tokenizer_model = None
    container.tokenizer.vocab_size = container.model.vocab_size
    return container


@contextlib.contextmanager
def _local_shapes(shapes: dict[str, Any] | str | None) -> Iterator[list[str]]:
    """While a recipe is built, read the model's shapes from a local `config.json` instead of the hub.

    Yields the hub ids that were asked for. Recipes take a hub id and no path, so the one function that they call is
    answered: seam `AutoBridge.from_hf_pretrained` (a class attribute), Megatron Bridge 0.3.1 and 0.7.0 dev.
    """
    asked: list[str] = []
    if shapes is None:
        yield asked
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory(prefix="shapes-") as temporary:
        folder = _folder_of(shapes, Path(temporary))
        from megatron.bridge import AutoBridge

        original = AutoBridge.__dict__["from_hf_pretrained"]

        def from_local(cls: Any, path: str, /, **kwargs: Any) -> Any:
            asked.append(str(path))
            return original.__func__(cls, str(folder), **kwargs)

        AutoBridge.from_hf_pretrained = classmethod(from_local)
        try:
            yield asked
        finally:
            AutoBridge.from_hf_pretrained = original


def _folder_of(shapes: dict[str, Any] | str, temporary: Path) -> Path:
    if isinstance(shapes, dict):
        (temporary / "config.json").write_text(json.dumps(shapes), encoding="utf-8")
        return temporary
    file = Path(shapes) / "config.json"
    if not file.is_file():
        raise RecipeError(f"model.huggingface_config={shapes}: there is no config.json in that folder")
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(f"{file} is not JSON: {error}") from error
    return file.parent


def _data(container: Any, trainer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if trainer.get("mock_data", True):
        found.update(_present(container, {"dataset.blend": None, "dataset.blend_per_split": None}))
    if trainer.get("null_tokenizer", True):
        vocabulary = container.model.vocab_size
        found.update({"tokenizer.tokenizer_type": "NullTokenizer", "tokenizer.tokenizer_model": None})
        if vocabulary is not None:
            found["tokenizer.vocab_size"] = vocabulary
    if trainer.get("checkpoint"):
        found["checkpoint.pretrained_checkpoint"] = trainer["checkpoint"]
    return found


def _apply_precision(container: Any, precision: dict[str, Any]) -> None:
    """Precision is one object in Bridge (`mixed_precision`): a named recipe replaces it, single fields edit it."""
    name = precision.get("recipe_name", RECIPE)
    if name not in (None, RECIPE):
        container.mixed_precision = name
    if isinstance(container.mixed_precision, str):
        module = importlib.import_module("megatron.bridge.training.mixed_precision")
        try:
            container.mixed_precision = module.get_mixed_precision_config(container.mixed_precision)
        except (KeyError, ValueError) as error:
            raise RecipeError(f"precision.recipe_name={name}: {error}") from error
    mixed = container.mixed_precision
    parameters = precision.get("params_dtype", RECIPE)
    if parameters != RECIPE:
        import torch

        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[parameters]
        mixed.bf16, mixed.fp16 = parameters == "bf16", parameters == "fp16"
        mixed.params_dtype = mixed.pipeline_dtype = dtype
    for key in ("grad_reduce_in_fp32", "fp8", "fp8_recipe"):
        value = precision.get(key, RECIPE)
        if value != RECIPE:
            setattr(mixed, key, value)
    if precision.get("use_precision_aware_optimizer", RECIPE) != RECIPE:
        container.optimizer.use_precision_aware_optimizer = precision["use_precision_aware_optimizer"]
    for key in _OPTIMIZER_DTYPES:
        value = precision.get(key, RECIPE)
        if value != RECIPE:
            import torch

            setattr(container.optimizer, key, getattr(torch, _DTYPES[value].removeprefix("torch.")))


def _set_callables(container: Any, model: dict[str, Any]) -> None:
    """Fields whose value is a function cannot travel through an override."""
    for key, allowed in _CALLABLE_MODEL_FIELDS.items():
        value = model.get(key, RECIPE)
        if value == RECIPE:
            continue
        if value not in allowed:
            raise RecipeError(f"model.{key}={value}: use one of {', '.join(allowed)}, or leave it as the recipe has it")
        module, _, name = allowed[value].rpartition(".")
        setattr(container.model, key, getattr(importlib.import_module(module), name))


def _apply(container: Any, values: dict[str, Any]) -> None:
    """Set dotted paths by Bridge's own override mechanism; a path that does not exist is refused with the nearest."""
    if not values:
        return
    overrides = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    tree, _ = overrides.create_omegaconf_dict_config(container)
    for path in values:
        _check_path(tree, path)
    # ++ because a dict field (a dataset's keyword arguments, say) may take keys that the recipe left out
    lines = [f"++{path}={json.dumps(_plain(value))}" for path, value in values.items()]
    try:
        overrides.process_config_with_overrides(container, cli_overrides=lines)
    except Exception as error:
        raise RecipeError(f"Megatron Bridge refused the overrides {', '.join(values)}: {error}") from error


def _check_path(tree: Any, path: str) -> None:
    from omegaconf import DictConfig

    node, walked = tree, ""
    for part in path.split("."):
        if not isinstance(node, DictConfig):
            raise RecipeError(f"override {path}: {walked} is a value and has no fields")
        if part not in node:
            if walked in ("dataset.dataset_kwargs", "trainer.overrides"):
                return
            raise RecipeError(
                f"override {path}: {walked or 'the configuration'} has no {part}{_nearest(part, list(node))}"
            )
        walked = f"{walked}.{part}" if walked else part
        node = node[part] if not _is_missing(node, part) else None


def _is_missing(node: Any, part: str) -> bool:
    from omegaconf import OmegaConf

    return OmegaConf.is_missing(node, part)


def _present(container: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The paths among `values` that this revision's configuration has."""
    found = {}
    for path, value in values.items():
        node: Any = container
        for part in path.split("."):
            node = getattr(node, part, _ABSENT) if node is not None else _ABSENT
        if node is not _ABSENT:
            found[path] = value
    return found


_ABSENT = object()


def _sequence_path(container: Any) -> str:
    names = {field.name for field in dataclasses.fields(container.dataset)}
    return "dataset.sequence_length" if "sequence_length" in names else "dataset.seq_length"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, [str(item) for item in known], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""
