"""Secrets are refused before anything is written: a batch, a specification and a script are files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config.errors import UsageError
from orchestrator.records.redact import is_secret_name, redact_text


def refuse_secrets(request: Mapping[str, Any]) -> None:
    """Refuse a request that holds a secret's value anywhere.

    Variables exported in the shell reach the ranks by themselves and are never written, so none is needed.

    Raises:
        UsageError: names the setting, and never its value.
    """
    # The database's address is no part of what is written, and holds a password by its nature.
    for path, name, value in _strings({key: item for key, item in request.items() if key != "store"}, ""):
        named = is_secret_name(name) and _owner(path) in ("environment", "sbatch", "srun")
        if value and (named or redact_text(value) != value):
            raise UsageError(
                f"{path} holds a secret, which would be written into scripts, records and the database: export it in "
                "your shell instead, which reaches the ranks and is written nowhere."
            )


def _owner(path: str) -> str:
    """The setting that a value belongs to: `environment` of `cluster.environment.HF_TOKEN`."""
    return path.split(".")[-2] if "." in path else ""


def _strings(value: Any, path: str, name: str = "") -> list[tuple[str, str, str]]:
    if isinstance(value, Mapping):
        return [
            item
            for key, inner in value.items()
            for item in _strings(inner, f"{path}.{key}" if path else str(key), str(key))
        ]
    if isinstance(value, (list, tuple)):
        return [item for index, inner in enumerate(value) for item in _strings(inner, f"{path}[{index}]", name)]
    return [(path, name, value)] if isinstance(value, str) else []
