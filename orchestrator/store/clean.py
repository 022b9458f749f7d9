"""What may enter a database: no secrets, and no text that a back end would refuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from orchestrator.records.jsonfile import FormatError
from orchestrator.records.redact import HIDDEN, is_secret_name, redact_text

_LIMIT = 2**63
_SHORT = 200


def clean_text(text: str) -> str:
    """The text without secrets; a NUL (which PostgreSQL refuses) and a lone surrogate are spelt out."""
    return _clean_short(text) if len(text) <= _SHORT else _storable(redact_text(text))


@lru_cache(4096)
def _clean_short(text: str) -> str:
    # Hosts, versions, names: the same few in every record of a job.
    return _storable(redact_text(text))


def clean(value: Any) -> Any:
    """A JSON value whose strings are clean, and whose secret fields are hidden, at any depth."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {
            _storable(str(key)): HIDDEN if item is not None and _is_secret(str(key)) else clean(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value


@lru_cache(4096)
def _is_secret(name: str) -> bool:
    return is_secret_name(name)


def digest(value: Any) -> str:
    """A hash that is equal for equal JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_numbers(values: Iterable[Any], where: str) -> None:
    """Refuse whole numbers that no column can hold: all are of 64 bits.

    Raises:
        FormatError: with the number.
    """
    numbers = [value for value in values if type(value) is int]
    for value in (min(numbers, default=0), max(numbers, default=0)):
        if not -_LIMIT <= value < _LIMIT:
            raise FormatError(f"{where}: {value} is no possible size or count")


def _storable(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
