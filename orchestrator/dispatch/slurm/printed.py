"""What srun and slurmstepd print of a step, read. Pure."""

from __future__ import annotations

import re
import signal

from orchestrator.dispatch.attempt import DRIVER_SIGNAL, JOB_TIME_LIMIT

_ENDED = re.compile(
    r"srun: error: \S+: tasks? (?P<tasks>[\d,\-]+): (?:Exited with exit code (?P<code>\d+)|(?P<word>[A-Z][\w ]*))"
)
_OVER_MEMORY = re.compile(r"slurmstepd\S*: error: .*(?:exceeded memory limit|oom.kill event)")
_TIME_LIMIT = re.compile(r"slurmstepd\S*: error: \*\*\* (?:STEP|JOB) .* DUE TO TIME LIMIT")
_NO_JOB = re.compile(
    r"srun: error: (?:Slurm job \d+ has expired|Unable to (?:create step|confirm allocation) for job \d+: "
    r"(?:Job/step already completing or completed|Invalid job id specified))"
)
_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Out Of Memory": signal.SIGKILL,
}


def exit_codes_of(text: str) -> dict[int, int]:
    """Exit status by rank from what srun says of tasks that did not end with 0; negative is a signal."""
    codes = {}
    for match in _ENDED.finditer(text):
        word = match["word"]
        if match["code"] is not None:
            status = int(match["code"])
        elif any(word.startswith(name) for name in _SIGNALS):
            status = -next(number for name, number in _SIGNALS.items() if word.startswith(name))
        else:
            continue
        for task in _numbers(match["tasks"]):
            codes[task] = status
    return codes


def end_of_job(text: str) -> str | None:
    """What srun prints of a step that ended with its job, or could not start since that is over; None for nothing."""
    if _TIME_LIMIT.search(text):
        return JOB_TIME_LIMIT
    return DRIVER_SIGNAL if _NO_JOB.search(text) else None


def memory_word(text: str) -> str | None:
    """What slurmstepd prints of a step over its memory, whose row may say CANCELLED or COMPLETED; None for nothing."""
    return next((line.strip() for line in text.splitlines() if _OVER_MEMORY.search(line)), None)


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
