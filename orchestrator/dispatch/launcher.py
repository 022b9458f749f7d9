"""Starting the ranks of a step: the one interface that every way of doing it stands behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from orchestrator.records.spec import TrialSpec


class Step(Protocol):
    """The ranks of one attempt while they run. Nothing here blocks for longer than it takes to ask."""

    exit_codes: dict[int, int]
    """Exit status of each rank's supervisor that has ended, as the launcher saw it; negative is a signal."""
    launch_error: str | None
    """Why no rank could be started, in the words of what refused; None while that is not so."""
    scheduler: dict[str, Any] | None
    """What a scheduler said of the step; None where none is involved."""
    cut_short: str | None
    """Why it ended with the job that it ran in, as an attempt records it; None where it did not."""

    def poll(self) -> bool:
        """Whether every rank has ended. Also carries out what is due: fail-fast, and the kill after a grace."""

    def end(self) -> None:
        """Ask every rank to end now; `poll` kills what does not within the grace."""

    def close(self) -> None:
        """Give back what the step held. Only after `poll` said that all has ended."""


class Launcher(Protocol):
    """A way of starting steps: processes of this machine, srun, and later ranks kept warm."""

    kind: str

    def new_beacon_dir(self, trial: str, attempt: str) -> str:
        """The node-local folder in which this attempt's ranks keep their beacons."""

    def start(self, spec: TrialSpec, spec_file: Path) -> Step:
        """Start every rank of an attempt on `spec_file`.

        Raises:
            LaunchError: nothing was started.
        """

    def bring_home(self, spec: TrialSpec) -> list[str]:
        """Move what ranks could only leave on their node into the attempt's folder, and remove their beacons.

        Every rank that left a beacon has a record afterwards. Returns notes on what could not be read.
        """

    def close(self) -> list[str]:
        """Remove what this launcher keeps on nodes between steps, at the end of the batch. Returns notes."""


class LaunchError(Exception):
    """A step could not be started; the message is the refusal in its own words."""
