"""The facts file: what a trainer found out once, beside its beacon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.records.jsonfile import encode, write_json
from orchestrator.records.redact import redact


class FactsFile:
    """A JSON object on the node's own storage that grows by merging, and is whole at any instant."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._facts: dict[str, Any] = {}

    def merge(self, facts: dict[str, Any]) -> None:
        """Add facts: objects are joined key by key, lists extended, anything else replaced. Secrets are removed.

        Raises:
            OSError: the folder is full or gone.
        """
        for name, value in redact(encode(facts)).items():
            known = self._facts.get(name)
            if isinstance(known, dict) and isinstance(value, dict):
                self._facts[name] = {**known, **value}
            elif isinstance(known, list) and isinstance(value, list):
                self._facts[name] = known + value
            else:
                self._facts[name] = value
        write_json(self._path, self._facts)
