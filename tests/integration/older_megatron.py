"""Where the older Megatron Core that this release supports is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OLDER = "0.15.3"


def older_release() -> Path:
    """The folder that Megatron Core 0.15.3 is in: installed once, beside the environment that runs the tests."""
    folder = Path(os.environ.get("ORCHESTRATOR_MCORE_0_15") or Path(sys.prefix) / f"mcore-{OLDER}")
    if not (folder / "megatron" / "core").is_dir():
        wanted = f"megatron-core=={OLDER}"
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), wanted]
        subprocess.run(command, check=True, timeout=300)
    return folder
