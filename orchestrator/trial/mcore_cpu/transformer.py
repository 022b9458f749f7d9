"""The TransformerConfig of a request: Megatron Core's own class, which also validates it."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Callable
from typing import Any

import torch

from orchestrator.trial.mcore_cpu.request import RejectedError, Request

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def build_transformer_config(request: Request) -> Any:
    """A finished `TransformerConfig`, or `MLATransformerConfig` where `multi_latent_attention` is set.

    Raises:
        RejectedError: a name is not one of its fields, or Megatron Core itself refuses the settings.
    """
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    kind = MLATransformerConfig if request.multi_latent_attention else TransformerConfig
    given = dict(request.transformer)
    if not request.multi_latent_attention:
        # Arguments of GPTModel there; fields only of MLATransformerConfig.
        for name in ("rotary_base", "rotary_percent"):
            given.pop(name, None)
    _refuse_unknown(given, kind)
    if "activation_func" in given:
        given["activation_func"] = _activation(given["activation_func"])
    if isinstance(given.get("attention_backend"), str):
        given["attention_backend"] = _attention_backend(given["attention_backend"])
    settings = {**_on_cpu(request), **given, **_layout(request), **_recompute(request)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kind(**settings)
    except (ValueError, AssertionError, NotImplementedError, RuntimeError, TypeError, ImportError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise RejectedError(f"Megatron Core refuses it: {text}") from error


def _on_cpu(request: Request) -> dict[str, Any]:
    """What this trainer sets unless asked otherwise: eager operations, and memory as in Megatron's own loop."""
    dtype = DTYPES[request.params_dtype]
    return {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "deallocate_pipeline_outputs": True,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
    }


def _layout(request: Request) -> dict[str, Any]:
    layout = request.parallelism
    return {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "sequence_parallel": layout.sequence_parallel,
        **({} if layout.layout is None else {"pipeline_model_parallel_layout": layout.layout}),
    }


def _recompute(request: Request) -> dict[str, Any]:
    recompute = request.recompute
    return {
        "recompute_granularity": recompute.granularity,
        "recompute_modules": None if recompute.modules is None else list(recompute.modules),
        "recompute_method": recompute.method,
        "recompute_num_layers": recompute.num_layers,
    }


def _refuse_unknown(given: dict[str, Any], kind: type[Any]) -> None:
    from megatron.core import __version__ as version

    known = [item.name for item in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise RejectedError(
                f"model.{name} is not a field of {kind.__name__} in Megatron Core {version}"
                + (f": did you mean {near[0]}?" if near else "")
            )


def _activation(name: Any) -> Callable[..., Any]:
    from megatron.core import activations

    functions = {
        "gelu": torch.nn.functional.gelu,
        "relu": torch.nn.functional.relu,
        "silu": torch.nn.functional.silu,
        "quick_gelu": getattr(activations, "quick_gelu", None),
        "squared_relu": getattr(activations, "squared_relu", None),
    }
    function = functions.get(str(name))
    if function is None:
        known = ", ".join(sorted(key for key, value in functions.items() if value is not None))
        raise RejectedError(f"model.activation_func={name} is none of {known}")
    return function


def _attention_backend(name: str) -> Any:
    from megatron.core.transformer.enums import AttnBackend

    try:
        return AttnBackend[name]
    except KeyError:
        raise RejectedError(
            f"model.attention_backend={name} is none of {', '.join(item.name for item in AttnBackend)}"
        ) from None
