"""A pinned trial runs on the pinned revisions, or not at all: checked before a framework is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.records.revision import MARKER
from orchestrator.trial.software import package

_PACKAGES = {"bridge": "megatron.bridge", "megatron_core": "megatron.core"}


class RevisionMismatchError(RuntimeError):
    """What an import would take is not what was pinned. The message says both."""


def check_revisions(config: Mapping[str, Any]) -> None:
    """Compare each pin with the package that an import takes here.

    Raises:
        RevisionMismatchError: another commit, a changed tree, or none that can be told.
    """
    revisions = config.get("revisions") or {}
    for name, module in _PACKAGES.items():
        pin = revisions.get(name)
        if not pin:
            continue
        found = package(module)
        path = found.get("path")
        commit = found.get("commit") or _marked(path)
        if commit is None:
            where = f"{module} comes from {path} ({found['found']})" if path else f"{module} {found['found']}"
            raise RevisionMismatchError(f"revisions.{name} is {pin}, but {where}, which tells no commit")
        if not commit.startswith(pin) and not pin.startswith(commit):
            raise RevisionMismatchError(f"revisions.{name} is {pin}, but {module} comes from {path} at {commit}")
        if found.get("dirty"):
            raise RevisionMismatchError(
                f"revisions.{name} is {pin}, but {path} differs from it: its tree is dirty (diff {found.get('diff')})"
            )


def _marked(path: str | None) -> str | None:
    """The commit in the mark of a pinned worktree around `path`."""
    if path is None:
        return None
    for folder in Path(path).parents:
        mark = folder / MARKER
        if mark.is_file():
            return mark.read_text(encoding="ascii").strip() or None
    return None
