"""JSON columns that always give what they should: an object, or a list."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import JSON, Dialect
from sqlalchemy.types import TypeDecorator

FOREIGN = "(foreign value)"
"""The key under which a value that is no object stands in the object that is read."""


class Shaped(TypeDecorator[Any]):
    """JSON of one shape. What another program or damage left in its place is kept inside one, so that it is shown."""

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type = dict) -> None:
        super().__init__(none_as_null=True)
        self.kind = kind

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is None or isinstance(value, self.kind):
            return value
        return [value] if self.kind is list else {FOREIGN: value}


def decoded(text: str | bytes) -> Any:
    """A stored JSON text; what is none is its text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text


def texts(values: list[Any] | None) -> list[str]:
    """The items of a list column that are to be text."""
    return [value if isinstance(value, str) else json.dumps(value) for value in values or ()]
