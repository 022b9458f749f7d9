"""Runs a command that is asked to end when whoever started it dies: `tied.py PARENT COMMAND…`.

A driver that is killed must not leave its step running beside the one that the next command starts. The wish survives
execve, except into setuid programs, of which srun is none. Run as a file with `python -I -S`: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, *command = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit("the driver has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
