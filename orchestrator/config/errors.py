"""What a command ends with when it cannot do what was asked. Messages are whole sentences for users."""

from __future__ import annotations


class OrchestratorError(Exception):
    """Ends a command with one line on stderr and `exit_code`, without a traceback."""

    exit_code = 1


class UsageError(OrchestratorError):
    """The command line or the configuration is wrong: the user must change it."""

    exit_code = 2


class EnvironmentFailure(OrchestratorError):  # noqa: N818 - what failed is the environment, not the program
    """The surroundings failed: a locked database, a full disk, no Slurm."""

    exit_code = 1


class NothingQualifies(OrchestratorError):  # noqa: N818 - an answer, not a fault
    """The question was understood and nothing fits."""

    exit_code = 3
