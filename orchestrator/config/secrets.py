"""Secrets of the environment that an interpolation would write into records: `${oc.env:HF_TOKEN}`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.errors import UsageError
from orchestrator.records.redact import is_secret_name

SHORTEST = 8
"""A shorter value stands in many a setting by chance."""

_NAMES_A_PLACE = re.compile(r"_(?:PATH|FILE|DIR|SOCK|SOCKET|URL)$", re.IGNORECASE)


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The values of variables whose names say that they hold a secret, and not where one lies; by value, the name."""
    return {
        value: name
        for name, value in environment.items()
        if len(value) >= SHORTEST
        and is_secret_name(name)
        and not _NAMES_A_PLACE.search(name)
        and not os.path.exists(value)  # noqa: PTH110
    }


def refuse_secret_values(settings: Any, path: str, secrets: Mapping[str, str]) -> None:
    """Refuse settings in which the value of a secret variable stands.

    Raises:
        UsageError: names the setting and the variable, and never the value.
    """
    for where, text in _strings(settings, path):
        for value, name in secrets.items():
            if value in text:
                raise UsageError(
                    f"{_without(where, secrets)} holds the value of {name}, a secret, which would be written into "
                    f"plans, records and the database: take it out and export {name} in your shell, which reaches the "
                    "ranks and is written nowhere."
                )


def _without(where: str, secrets: Mapping[str, str]) -> str:
    for value, name in secrets.items():
        where = where.replace(value, f"${name}")
    return where


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            where = f"{path}.{key}" if path else str(key)
            yield where, str(key)
            yield from _strings(inner, where)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _strings(inner, f"{path}[{index}]")
