"""Where the older Megatron Core that this release supports is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OLDER = "0.15.3"


def older_release() -> Path:
    """The folder that Megatron Core 0.15.3 is in: where `make` installs it, or where it is installed now, once."""
    named = os.environ.get("ORCHESTRATOR_MCORE_0_15")
    folder = Path(named or Path(sys.prefix) / "revisions" / f"megatron-core-{OLDER}")
    if not (folder / "megatron" / "core").is_dir():
        wanted = f"megatron-core=={OLDER}"
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), wanted]
        subprocess.run(command, check=True, timeout=300)
    return folder
