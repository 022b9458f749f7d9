"""Where a revision of Megatron Core or Megatron Bridge can be imported from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.config.errors import UsageError
from orchestrator.plan.candidate import group, pins

_DISTRIBUTIONS = ("megatron_core", "megatron_bridge", "torch", "transformer_engine", "transformer_engine_torch")
_JUDGING_FILES = (
    "transformer/transformer_config.py",
    "transformer/enums.py",
    "transformer/pipeline_parallel_layer_layout.py",
    "model_parallel_config.py",
    "package_info.py",
)


@dataclass(frozen=True)
class Installation:
    """Where a revision can be imported from."""

    python: str = sys.executable
    checkout: str | None = None
    """A Megatron-LM or Megatron Bridge checkout, put first on the path of `python`."""

    @classmethod
    def at(cls, place: str) -> Installation:
        """The installation that a user names: a checkout, an environment's folder, or a Python interpreter.

        Raises:
            UsageError: there is none of these.
        """
        path = Path(place).expanduser()
        if path.is_file() and os.access(path, os.X_OK):
            return cls(python=str(path.absolute()))
        if (path / "bin" / "python").exists():
            return cls(python=str((path / "bin" / "python").absolute()))
        found = cls(checkout=str(path))
        if found.checkout_folders():
            return found
        raise UsageError(
            f"{place} is no revision: give the folder of a Megatron-LM or Megatron Bridge checkout (with "
            "megatron/core in it), an environment's folder (with bin/python), or a Python interpreter."
        )

    def checkout_folders(self) -> list[str]:
        """What of the checkout has to be on the path: its root, its `src`, and a Megatron-LM inside it."""
        if not self.checkout:
            return []
        root = Path(self.checkout).expanduser().resolve()
        nested = (root, root / "src", root / "3rdparty" / "Megatron-LM")
        return [str(folder) for folder in nested if (folder / "megatron").is_dir()]

    def has_bridge(self) -> bool:
        """Whether Megatron Bridge can be imported here, as far as its folder tells."""
        searched = [*self.checkout_folders(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        folders = [*map(Path, filter(None, searched)), *_package_folders(self.python)]
        return any((folder / "megatron" / "bridge").is_dir() for folder in folders)

    def environment(self) -> dict[str, str]:
        """The variables for a process that imports this revision."""
        environment = dict(os.environ)
        rest = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        environment["PYTHONPATH"] = os.pathsep.join([*self.path(), *rest])
        return environment

    def path(self) -> list[str]:
        """Folders to put first on PYTHONPATH: the checkout's, then this package's."""
        return [*self.checkout_folders(), str(Path(orchestrator.__file__).resolve().parent.parent)]

    def key(self) -> str:
        """Changes whenever the validator could answer otherwise: versions, the judging files, our own validator."""
        digest = hashlib.sha256()
        for item in (self.python, *self.path(), *_installed(self.python)):
            digest.update(f"{item}\n".encode())
        for path in _judging_files(self):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:24]


def installation_of(request: Mapping[str, Any]) -> tuple[Installation, str | None]:
    """Where the revision that a request pins can be imported from, and what is wrong with that.

    A pin is found as a folder below `revisions.worktrees` whose name ends with it, or as the path that it names itself.
    What is pinned and not there is judged by what is installed, which the second item says.
    """
    pinned = pins(request)
    for name in ("bridge", "megatron_core"):
        wanted = pinned.get(name)
        if wanted is None:
            continue
        found = _checkout(wanted, group(request, "revisions").get("worktrees"))
        if found is not None:
            return found, None
    if not pinned:
        return Installation(), None
    named = " and ".join(f"revisions.{name}={wanted}" for name, wanted in pinned.items())
    return Installation(), f"{named} is not checked out on this machine, so what is installed here judged in its place"


def _checkout(wanted: str, worktrees: Any) -> Installation | None:
    places = [Path(wanted).expanduser()] if os.sep in wanted else []
    if isinstance(worktrees, str) and worktrees and os.sep not in wanted:
        folder = Path(worktrees).expanduser()
        with contextlib.suppress(OSError):
            places += sorted(place for place in folder.iterdir() if place.name.endswith(wanted))
    for place in places:
        found = Installation(checkout=str(place))
        if found.checkout_folders():
            return found
    return None


def _installed(python: str) -> list[str]:
    """Names and versions of the distributions that decide, from their metadata folders."""
    found = {
        entry.name
        for folder in _package_folders(python)
        for name in _DISTRIBUTIONS
        for entry in folder.glob(f"{name}-*.dist-info")
    }
    return sorted(found)


def _package_folders(python: str) -> list[Path]:
    if python == sys.executable:
        return [Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))]
    return sorted(Path(python).parent.parent.glob("lib*/python3*/site-packages"))


def _judging_files(installation: Installation) -> list[Path]:
    folders = [Path(folder) for folder in installation.path()]
    ours = Path(orchestrator.__file__).resolve().parent
    judging = [
        path for folder in folders for name in _JUDGING_FILES if (path := folder / "megatron" / "core" / name).is_file()
    ]
    return [*judging, *sorted((ours / "trial").rglob("*.py"))]
