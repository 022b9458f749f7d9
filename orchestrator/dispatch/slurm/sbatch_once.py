"""Calls sbatch only while the submission it belongs to is still wanted: `sbatch_once.py LOCK FILE TOKEN COMMAND…`.

The lock is held until sbatch has ended, also where whoever started this is killed. The next command takes the lock and
writes another token before it looks for the job, so a submission is either found or can never happen. Run as a file
with `python -I -S`: standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys


def main(arguments: list[str]) -> None:
    lock, submission, token, *command = arguments
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)
    with open(submission, encoding="utf-8") as stream:  # noqa: PTH123 - pathlib would double the time this takes
        if json.load(stream).get("token") != token:
            sys.exit("this submission has been given up by a later command")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
