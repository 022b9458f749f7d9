"""The configuration as the framework finished it, as plain JSON."""

from __future__ import annotations

import dataclasses
import functools
from enum import Enum
from typing import Any

import torch

_SCALARS = (str, int, float, bool, type(None))


def as_json(value: Any) -> Any:
    """A configuration object as JSON: dtypes and functions by name, what cannot be named by its class."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_json(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [as_json(item) for item in value]
        return sorted(items, key=str) if isinstance(value, (set, frozenset)) else items
    if isinstance(value, functools.partial):
        return {"function": as_json(value.func), **as_json(value.keywords)}
    if callable(value):
        return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return type(value).__qualname__
