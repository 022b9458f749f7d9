"""Reading settings of a finished configuration, whose types nobody has checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.predict.problem import CannotPredictError

_BYTES = {"fp32": 4, "float32": 4, "float": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1, "uint8": 1}


def size(dtype: Any, default: int) -> int:
    """Bytes of a number in that format."""
    if dtype is None:
        return default
    return _BYTES.get(str(dtype).removeprefix("torch."), default)


def integer(fields: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number, or the default where there is none."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise CannotPredictError(f"{name}={value!r:.40} is not a whole number")
    return value


def positive(fields: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number above zero, or the default where there is none."""
    value = integer(fields, name, default)
    if value < 1:
        if fields.get(name) is None:
            raise CannotPredictError(
                f"{name} is not known, and a prediction needs it (of a recipe, trainer=bridge knows it)."
            )
        raise CannotPredictError(f"{name}={value} must be above zero")
    return value


def optional(fields: Mapping[str, Any], name: str) -> int | None:
    """A whole number above zero; None where there is none."""
    return None if fields.get(name) is None else positive(fields, name, 1)


def word(fields: Mapping[str, Any], name: str) -> str | None:
    """A word; None where there is none."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise CannotPredictError(f"{name}={value!r:.40} is no word")
    return value


def number(value: Any) -> float:
    """A number; nothing is zero."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CannotPredictError(f"{value!r:.40} is no number")
    return float(value)
