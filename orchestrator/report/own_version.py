"""Which revision of this program wrote a report: its version, and its commit where the installation knows it."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

from orchestrator import __version__

_DISTRIBUTION = "recompute-orchestrator"
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def own_version() -> str:
    """`0.1.0, commit 1a2b3c4d5e6f`."""
    commit = _installed_from() or _checked_out(Path(__file__).parents[2])
    return f"{__version__}, commit {commit[:12]}" if commit else __version__


def _installed_from() -> str | None:
    """The commit that pip installed (PEP 610, direct_url.json)."""
    try:
        text = metadata.distribution(_DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin = (json.loads(text) if text else {}).get("vcs_info") or {}
    return _commit(str(origin.get("commit_id", "")))


def _checked_out(root: Path) -> str | None:
    """The commit of a source tree, without starting git: of a branch that is packed, nothing is said."""
    try:
        head = (root / ".git" / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            head = (root / ".git" / head.removeprefix("ref: ")).read_text().strip()
    except OSError:
        return None
    return _commit(head)


def _commit(text: str) -> str | None:
    return text if _COMMIT.fullmatch(text) else None
