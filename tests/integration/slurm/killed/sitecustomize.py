"""Kills its own process with SIGKILL at the Nth step that can be seen from outside: a file renamed or made, a process
started, a folder made. `KILL_AT=N` and `KILL_WORD`, a word of the command line of the process that is meant."""

from __future__ import annotations

import os
import signal
import sys

_AT = int(os.environ.get("KILL_AT", "-1"))
_STEPS = ("os.rename", "os.mkdir", "subprocess.Popen", "os.posix_spawn")
_seen = 0


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    global _seen
    if event not in _STEPS or ".building-" in repr(arguments):
        return
    if "orchestrator" not in repr(arguments) and "sbatch" not in repr(arguments) and "srun" not in repr(arguments):
        return
    _seen += 1
    if _seen == _AT:
        os.kill(os.getpid(), signal.SIGKILL)
    if _AT == 0:
        with open(os.environ["KILL_COUNT"], "a") as stream:  # noqa: PTH123 - `pathlib` is not imported this early
            stream.write(f"{_seen} {event} {arguments!r:.200}\n")


if _AT >= 0 and any(os.environ["KILL_WORD"] in word for word in sys.orig_argv):
    sys.addaudithook(_hook)
