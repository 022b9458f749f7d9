"""The files that say what a recipe is: editing one makes another trial of the same request."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

_OF_BRIDGE = "megatron"


def recipe_digest(request: Mapping[str, Any]) -> str | None:
    """SHA-256 of the recipe's own file, and of the `config.json` in the folder of `model.huggingface_config`.

    None where the request names neither, or this machine can read neither, as for a recipe inside an image, whose
    digest is part of a trial's identity itself. A recipe of Megatron Bridge counts only where `revisions.bridge` pins
    no commit, which says more. Nothing is imported: a recipe's module may need a GPU to be.
    """
    model, revisions = request.get("model"), request.get("revisions")
    if not isinstance(model, Mapping):
        return None
    pinned = isinstance(revisions, Mapping) and revisions.get("bridge")
    digests = [_digest_of_module(str(model.get("recipe") or ""), skip=_OF_BRIDGE if pinned else None)]
    shapes = model.get("huggingface_config")
    if isinstance(shapes, str):
        digests.append(_digest(Path(shapes) / "config.json"))
    return "".join(digest for digest in digests if digest is not None) or None


def _digest_of_module(name: str, skip: str | None) -> str | None:
    """Of the longest part of a dotted name that is a module on the import path."""
    parts = name.split(".")
    if len(parts) < 2 or parts[0] == skip or not all(part.isidentifier() for part in parts):
        return None
    for length in range(len(parts) - 1, 0, -1):
        for path in _candidates(parts[:length]):
            found = _digest(path)
            if found is not None:
                return found
    return None


def _candidates(module: list[str]) -> Iterator[Path]:
    for folder in sys.path:
        whole = Path(folder or ".").joinpath(*module)
        yield whole.with_name(f"{whole.name}.py")
        yield whole / "__init__.py"


def _digest(path: Path) -> str | None:
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError):  # pathlib's of a null byte
        return None


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> str:
    """`changed` and `size` are of the file that is meant, so that an edited one is read again."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
