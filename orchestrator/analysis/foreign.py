"""Stored values as what they should be: a foreign or damaged one is left out and said, and stops nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GROUPS = ("model", "parallelism", "precision", "training", "trainer", "revisions", "cluster", "study")
_LONGEST = 40


@dataclass
class Reading:
    """Reads the values of one row; `notes` are the values that were left out."""

    notes: list[str] = field(default_factory=list)

    def mapping(self, value: Any, what: str) -> Mapping[str, Any]:
        """An object; empty where it is absent."""
        if isinstance(value, Mapping):
            return value
        self._leave_out(value, what, "an object")
        return {}

    def listed(self, value: Any, what: str) -> list[Any]:
        """A list; empty where it is absent."""
        if isinstance(value, (list, tuple)):
            return list(value)
        self._leave_out(value, what, "a list")
        return []

    def text(self, value: Any, what: str) -> str | None:
        """Text."""
        if isinstance(value, str):
            return value
        self._leave_out(value, what, "text")
        return None

    def number(self, value: Any, what: str) -> float | None:
        """A finite number."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return value
        self._leave_out(value, what, "a number")
        return None

    def whole(self, value: Any, what: str) -> int | None:
        """A whole number."""
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self._leave_out(value, what, "a whole number")
        return None

    def request(self, value: Any) -> dict[str, Any]:
        """A requested configuration, whose groups are objects."""
        request = dict(self.mapping(value, "the request"))
        for name in GROUPS:
            if name in request:
                request[name] = dict(self.mapping(request[name], f"the request's {name}"))
        return request

    def _leave_out(self, value: Any, what: str, wanted: str) -> None:
        if value is not None:
            text = as_text(value)
            shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
            self.notes.append(f"{what} is {shown}, and not {wanted}: it was left out")


def as_text(value: Any) -> str:
    """A value of any JSON type as one line; text as it is."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=repr)
