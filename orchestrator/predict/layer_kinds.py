"""Which kind each layer of a decoder is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.predict.job import LayerKind
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.settings import integer, positive, word

_HYBRID = {
    "M": LayerKind("mamba", None),
    "*": LayerKind("gqa", None),
    "-": LayerKind(None, "dense"),
    "E": LayerKind(None, "moe"),
}


def layer_kinds(model: Mapping[str, Any]) -> tuple[LayerKind, ...]:
    """The layers, first to last.

    Raises:
        CannotPredictError: a letter of a hybrid pattern is not known, or a list has another length.
    """
    pattern = word(model, "hybrid_override_pattern")
    if pattern:
        unknown = sorted(set(pattern) - set(_HYBRID) - {"|", "/"})
        if unknown:
            raise CannotPredictError(
                f"hybrid_override_pattern has layers that are not known here: {', '.join(unknown)}"
            )
        return _unquantised(model, tuple(_HYBRID[letter] for letter in pattern if letter in _HYBRID))
    number = positive(model, "num_layers", 0)
    mixer = "mla" if model.get("multi_latent_attention") else "gqa"
    linear = _is_linear(model, number)
    experts = _is_moe(model, number)
    kinds = tuple(
        LayerKind("gdn" if linear[index] else mixer, "moe" if experts[index] else "dense") for index in range(number)
    )
    return _unquantised(model, kinds)


def _unquantised(model: Mapping[str, Any], kinds: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """With the first and last layers marked that a job in FP8 leaves in BF16 (fp8_utils.py is_first_last_bf16_layer):
    get_fp8_context then neither computes in FP8 nor builds FP8 parameters there."""
    if not model.get("fp8") or not model.get("first_last_layers_bf16"):
        return kinds
    start = integer(model, "num_layers_at_start_in_bf16", 1)
    end = len(kinds) - integer(model, "num_layers_at_end_in_bf16", 1)
    return tuple(
        replace(kind, unquantised=True) if index < start or index >= end else kind for index, kind in enumerate(kinds)
    )


def _is_linear(model: Mapping[str, Any], number: int) -> list[bool]:
    """As `get_linear_attention_pattern`: a number n makes every n-th layer one of full attention."""
    frequency = model.get("linear_attention_freq")
    if model.get("experimental_attention_variant") != "gated_delta_net" or frequency is None:
        return [False] * number
    if isinstance(frequency, (list, tuple)):
        return _flags("linear_attention_freq", frequency, number)
    every = positive(model, "linear_attention_freq", 1)
    return [(index + 1) % every != 0 for index in range(number)]


def _is_moe(model: Mapping[str, Any], number: int) -> list[bool]:
    if not model.get("num_moe_experts"):
        return [False] * number
    frequency = model.get("moe_layer_freq", 1)
    if isinstance(frequency, (list, tuple)):
        return _flags("moe_layer_freq", frequency, number)
    every = positive(model, "moe_layer_freq", 1)
    return [index % every == 0 for index in range(number)]


def _flags(name: str, listed: Sequence[Any], number: int) -> list[bool]:
    if len(listed) != number:
        raise CannotPredictError(f"{name} lists {len(listed)} layers of {number}")
    return [bool(flag) for flag in listed]
