"""A step ends with the driver that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.dispatch.slurm import tied

DRIVER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), "sleep", "60"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_command_is_ended_with_whoever_started_it() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, tied.__file__], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    child = int(driver.stdout.readline())
    deadline = time.monotonic() + 20
    while not Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"sleep\0"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    while _lives(child):
        assert time.monotonic() < deadline, "it outlived its driver"
        time.sleep(0.02)


def test_a_command_whose_driver_is_gone_already_does_not_start(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-I",
        "-S",
        tied.__file__,
        "1" if os.getpid() != 1 else "2",
        "touch",
        str(tmp_path / "x"),
    ]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    assert not (tmp_path / "x").exists()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
