"""What Bridge finished with: the whole configuration, and the layers that were really built."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

_PARTS = (
    ("self_attention", "self_attention"),
    ("core_attention", "self_attention.core_attention"),
    ("query_projection", "self_attention.linear_q_proj"),
    ("query_down_projection", "self_attention.linear_q_down_proj"),
    ("kv_up_projection", "self_attention.linear_kv_up_proj"),
    ("input_layernorm", "input_layernorm"),
    ("pre_mlp_layernorm", "pre_mlp_layernorm"),
    ("mlp", "mlp"),
    ("experts", "mlp.experts"),
    ("shared_experts", "mlp.shared_experts"),
    ("mixer", "mixer"),
)


def effective_configuration(container: Any, model: list[Any]) -> dict[str, Any]:
    """The ConfigContainer as Bridge's own conversion to plain values gives it, and `layers`: kinds of built layers.

    Functions and objects cannot be converted; the public ones are listed by name under `callables` (the private ones
    are handles of the running process, such as its groups). Each entry of `layers` has the number of layers of that
    kind on this rank and the class of each part.
    """
    overrides = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    tree, callables = overrides.create_omegaconf_dict_config(container)
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(plain, dict)
    return {
        **{str(key): value for key, value in plain.items()},
        "callables": public({path.removeprefix("root."): value for path, value in callables.items()}),
        "layers": built_layers(model),
    }


def built_layers(model: list[Any]) -> list[dict[str, Any]]:
    """Kinds of layers on this rank: how many of each, and the class of every part that a label could act on."""
    kinds: Counter[tuple[tuple[str, str], ...]] = Counter()
    for chunk in model:
        for module in chunk.modules():
            if hasattr(module, "layer_number") and (hasattr(module, "mixer") or hasattr(module, "self_attention")):
                kinds[tuple(_parts(module))] += 1
    return [{"count": count, **dict(parts)} for parts, count in kinds.items()]


def _parts(layer: Any) -> list[tuple[str, str]]:
    found = [("layer", type(layer).__name__)]
    for name, path in _PARTS:
        node: Any = layer
        for part in path.split("."):
            node = getattr(node, part, None)
        if node is not None:
            found.append((name, type(node).__name__))
    return found


def public(unconverted: dict[str, Any]) -> dict[str, str]:
    """The names of the values at dotted paths of which no part is private."""
    shown = {path: value for path, value in unconverted.items() if not any(p.startswith("_") for p in path.split("."))}
    return {path: _name(value) for path, value in shown.items()}


def _name(value: Any) -> str:
    function = getattr(value, "func", value)
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
