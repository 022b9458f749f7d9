"""The line that a supervisor puts before a trainer's stacks: what the kernel says of its main thread."""

from __future__ import annotations

import re

_ASLEEP = re.compile(r"^Main thread asleep in (\w+)$", re.MULTILINE)


def asleep_line(call: str) -> str:
    """Says that the main thread sleeps in the system call of that name."""
    return f"Main thread asleep in {call}\n"


def asleep_in(stacks: str) -> str | None:
    """The call that the last such line names; None without one."""
    calls = _ASLEEP.findall(stacks)
    return calls[-1] if calls else None
