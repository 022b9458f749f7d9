"""What a supervisor's exit status says. 0 is a trainer that ended by itself with 0; anything else ends the step."""

from __future__ import annotations

EXIT_OK = 0
EXIT_USAGE = 2
"""The command line, the specification or the rank's environment is not what it should be: nothing was started."""
EXIT_FAILED = 10
"""The trainer raised, or exited with another status than 0."""
EXIT_SIGNAL = 11
"""A signal ended the trainer."""
EXIT_STALL = 12
"""The trainer made no progress for `stall_seconds`, and was killed."""
EXIT_TIME_LIMIT = 13
"""The trainer was killed at the trial's own time limit."""
EXIT_TERMINATED = 14
"""The supervisor was asked to end, and killed the trainer."""
EXIT_RECORD_ELSEWHERE = 15
"""The run's folder could not be written: the record is in the node-local beacon folder."""
EXIT_NO_RECORD = 16
"""No record could be written at all: what is left are the beacon and the facts."""

MEANINGS = {
    EXIT_OK: "the trainer ended by itself",
    EXIT_USAGE: "nothing was started: bad specification or environment",
    EXIT_FAILED: "the trainer failed",
    EXIT_SIGNAL: "a signal ended the trainer",
    EXIT_STALL: "the trainer made no progress and was killed",
    EXIT_TIME_LIMIT: "the trainer was killed at its time limit",
    EXIT_TERMINATED: "the rank was asked to end",
    EXIT_RECORD_ELSEWHERE: "the record is in the node-local folder: the run's folder could not be written",
    EXIT_NO_RECORD: "no record could be written",
}
