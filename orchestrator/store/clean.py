"""What may enter a database: no secrets, and no text that a back end would refuse."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from orchestrator.records.jsonfile import FormatError
from orchestrator.records.redact import redact, redact_text

_WIDE = 2**63
_NARROW = 2**31


def clean_text(text: str) -> str:
    """The text without secrets; a NUL (which PostgreSQL refuses) and a lone surrogate are spelt out."""
    return _storable(redact_text(text))


def clean(value: Any) -> Any:
    """A JSON value whose strings are clean, and whose secret fields are hidden, at any depth."""
    return _storable_value(redact(value))


def digest(value: Any) -> str:
    """A hash that is equal for equal JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_numbers(rows: list[dict[str, Any]], wide: frozenset[str], where: str) -> None:
    """Refuse whole numbers that a column cannot hold: 64 bits for the columns in `wide`, 32 for others.

    Raises:
        FormatError: with the column.
    """
    for row in rows:
        for key, value in row.items():
            if type(value) is int:
                limit = _WIDE if key in wide else _NARROW
                if not -limit <= value < limit:
                    raise FormatError(f"{where}: {key} is {value}, which is no possible size or count")


def _storable(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _storable_value(value: Any) -> Any:
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, dict):
        return {_storable(str(key)): _storable_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable_value(item) for item in value]
    return value
