"""Kills its own process with SIGKILL at the Nth step that can be seen from outside: a file opened to be written, or
renamed or removed, a folder made, a process started. Of a file that is written aside, the renaming is the step.
`KILL_AT=N`, and `KILL_WORD`, a word of the command line of the process that is meant."""

from __future__ import annotations

import os
import signal
import sys

_AT = int(os.environ.get("KILL_AT", "-1"))
_STEPS = ("os.rename", "os.mkdir", "os.remove", "subprocess.Popen", "os.posix_spawn")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
_ASIDE = (".building-", ".json.", ".pyc", ".pkl")
_seen = 0


def _is_step(event: str, arguments: tuple[object, ...]) -> bool:
    told = repr(arguments)
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and bool(flags & _WRITING)
        return writes and "/orchestrator-" in told and not any(word in str(path) for word in _ASIDE)
    words = ("orchestrator", "sbatch", "srun")
    return event in _STEPS and ".building-" not in told and any(word in told for word in words)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    global _seen
    if not _is_step(event, arguments):
        return
    _seen += 1
    if _seen == _AT:
        os.kill(os.getpid(), signal.SIGKILL)
    if _AT == 0:
        with open(os.environ["KILL_COUNT"], "a") as stream:  # noqa: PTH123 - `pathlib` is not imported this early
            stream.write(f"{_seen} {event} {arguments!r:.200}\n")


if _AT >= 0 and any(os.environ["KILL_WORD"] in word for word in sys.orig_argv):
    sys.addaudithook(_hook)
