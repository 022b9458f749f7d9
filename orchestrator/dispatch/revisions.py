"""Pinned revisions: one detached worktree a commit, first on the ranks' path."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.errors import EnvironmentFailure, UsageError
from orchestrator.plan.candidate import group
from orchestrator.records import layout
from orchestrator.records.revision import MARKER

_FOLDER = "worktrees"
_GIT_SECONDS = 300.0


@dataclass(frozen=True)
class Pin:
    """A revision that a trial must run on."""

    name: str
    """`bridge` or `megatron_core`: its setting in `revisions`."""
    commit: str
    repository: str | None
    worktree: Path

    @property
    def on_path(self) -> str:
        """The folder that Python imports from: Megatron Bridge keeps its package below `src`."""
        return str(self.worktree / "src" if self.name == "bridge" else self.worktree)


def pins_of(config: Mapping[str, Any], results_dir: str) -> list[Pin]:
    """The pins of a trial's configuration, with where their worktrees lie. Pure."""
    revisions = group(config, "revisions")
    folder = Path(str(revisions.get("worktrees") or Path(results_dir) / _FOLDER))
    return [
        Pin(name, str(revisions[name]), revisions.get(f"{name}_repository"), folder / f"{name}-{revisions[name]}")
        for name in ("bridge", "megatron_core")
        if revisions.get(name)
    ]


def prepare(pins: Sequence[Pin]) -> None:
    """Have every pin's worktree, from a local clone or mirror. Nothing is fetched.

    Raises:
        UsageError: there is no repository, or it has no such commit.
        EnvironmentFailure: git is missing or fails.
    """
    for pin in dict.fromkeys(pins):
        if not pin.repository:
            raise UsageError(
                f"revisions.{pin.name}={pin.commit} needs revisions.{pin.name}_repository: the folder of a local clone "
                "or mirror that has the commit."
            )
        if (pin.worktree / MARKER).exists():
            continue
        commit = _git(pin, "rev-parse", "--verify", "--quiet", f"{pin.commit}^{{commit}}")
        if commit is None:
            raise UsageError(
                f"{pin.repository} has no commit {pin.commit}, which revisions.{pin.name} asks for: fetch it there."
            )
        layout.make_private_dir(pin.worktree.parent)
        _git(pin, "worktree", "prune")
        exists = (pin.worktree / ".git").exists()
        if not exists and _git(pin, "worktree", "add", "--detach", "--force", str(pin.worktree), commit) is None:
            raise EnvironmentFailure(f"git could not make a worktree of {pin.repository} in {pin.worktree}.")
        (pin.worktree / MARKER).write_text(commit + "\n", encoding="ascii")


def _git(pin: Pin, *words: str) -> str | None:
    """What git prints; None where it fails."""
    command = ["git", "-c", "safe.directory=*", "-C", str(pin.repository), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"git cannot be used for revisions.{pin.name}: {error}.") from error
    return done.stdout.strip() if done.returncode == 0 else None
