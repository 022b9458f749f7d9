"""How often the kernel's OOM killer struck in this process's control group."""

from __future__ import annotations

import re
from pathlib import Path

_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Kills so far, of version 2 (memory.events) or version 1 (memory.oom_control); None where none are counted."""
    for path in _counters(proc, root):
        try:
            found = _KILLS.search(path.read_text(encoding="utf-8"))
        except OSError:
            continue
        if found:
            return int(found.group(1))
    return None


def _counters(proc: Path, root: Path) -> list[Path]:
    try:
        lines = proc.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        below = group.lstrip("/")
        if hierarchy == "0":
            found.append(root / below / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / below / "memory.oom_control")
            # A container sees its own group as the root, under the name that the host has for it.
            found.append(root / "memory" / "memory.oom_control")
    return found
