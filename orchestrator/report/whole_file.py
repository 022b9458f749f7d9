"""Files for a user that are whole or as they were before."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from orchestrator.config.errors import EnvironmentFailure


def write_whole(path: Path, content: bytes) -> int:
    """Write a file with the permissions that the user's umask gives; its size in bytes.

    Raises:
        EnvironmentFailure: the folder cannot be written, or the disk is full.
    """
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise EnvironmentFailure(
            f"{path} cannot be written ({error.strerror}): give another file with --output."
        ) from error
    return len(content)
