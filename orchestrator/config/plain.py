"""Values set without Hydra: composing takes it some 65 ms, and in a grid most points differ only in values.

What an override means is still Hydra's parser's word. A configuration is composed once for each distinct set of group
choices and plain values are set on it; whatever is not plain (added or deleted keys, packages, values of dictionaries)
is left to Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_NEVER_PLAIN = ("hydra", "defaults")


@dataclass(frozen=True)
class Word:
    """An override, with what is asked of it for every candidate that has it."""

    text: str
    is_group: bool = False
    path: tuple[str, ...] | None = None
    """The keys to a plain value; None where Hydra has to set it."""
    value: Any = None

    @classmethod
    def of(cls, override: Override, chooses: bool) -> Word:
        """`chooses` says whether it is a choice of a group's file."""
        text = override.input_line or ""
        if chooses or not _is_plain(override):
            return cls(text, chooses)
        return cls(text, path=tuple(override.key_or_group.split(".")), value=override.value())


def with_values(base: dict[str, Any], words: Sequence[Word], open_groups: Sequence[str]) -> dict[str, Any] | None:
    """The base with plain values set; it shares with the base whatever no value touches.

    None where Hydra would rather merge, convert or refuse: keys that are new outside of `open_groups`, and
    dictionaries.
    """
    config = dict(base)
    own: dict[tuple[str, ...], dict[str, Any]] = {(): config}
    for word in words:
        if word.is_group:
            continue
        if word.path is None or not _set(own, word.path, word.value, open_groups):
            return None
    return config


def is_literal(value: Any) -> bool:
    """Whether it holds nothing to resolve and nothing missing."""
    if isinstance(value, dict):
        return all(map(is_literal, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_literal, value))
    return not isinstance(value, str) or ("${" not in value and "???" not in value)


def _set(own: dict[tuple[str, ...], dict[str, Any]], path: tuple[str, ...], value: Any, groups: Sequence[str]) -> bool:
    """Set a value; `own` has the dictionaries that are copies already, by their path."""
    for depth in range(1, len(path)):
        if path[:depth] not in own:
            outer = own[path[: depth - 1]]
            inner = outer.get(path[depth - 1])
            if not isinstance(inner, dict):
                return False
            own[path[:depth]] = outer[path[depth - 1]] = dict(inner)
    group, last = own[path[:-1]], path[-1]
    if isinstance(group.get(last), dict) or (last not in group and (len(path) < 2 or path[0] not in groups)):
        return False
    group[last] = list(value) if isinstance(value, (list, tuple)) else value
    return True


def _is_plain(override: Override) -> bool:
    """Whether an override is `key=value` with a value that holds nothing to resolve."""
    key = override.key_or_group
    if override.is_add() or override.is_force_add() or override.is_delete() or override.is_sweep_override():
        return False
    if override.package is not None or not _PLAIN_KEY.fullmatch(key) or key.split(".")[0] in _NEVER_PLAIN:
        return False
    value = override.value()
    if isinstance(value, (list, tuple)):
        return all(_is_scalar(item) for item in value)
    return _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    return value is None or (isinstance(value, (str, bool, int, float)) and is_literal(value))
