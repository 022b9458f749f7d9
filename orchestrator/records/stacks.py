"""What a supervisor keeps of a hung trainer: the stacks that Python's faulthandler prints, after a line with what the
kernel says of the main thread."""

from __future__ import annotations

import re

_WHOLE = re.compile(
    rb"^(?:Current thread 0x.*|Stack \(most recent call first\):)\n(?:  File .*\n)+?  File .* in _run_module_as_main\n",
    re.MULTILINE,
)
_ASLEEP = re.compile(r"^Main thread asleep in (\w+)$", re.MULTILINE)


def is_whole(printed: bytes) -> bool:
    """Whether it shows from end to end the thread that took the signal, which is printed last."""
    return _WHOLE.search(printed) is not None


def asleep_line(call: str) -> str:
    """Says that the main thread sleeps in the system call of that name."""
    return f"Main thread asleep in {call}\n"


def asleep_in(stacks: str) -> str | None:
    """The call that the last such line names; None without one."""
    calls = _ASLEEP.findall(stacks)
    return calls[-1] if calls else None
