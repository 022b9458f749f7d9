"""Ranks as processes of this machine, with a rendezvous over loopback."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.dispatch.gather import bring_home
from orchestrator.dispatch.launcher import LaunchError
from orchestrator.dispatch.rendezvous import HeldPort
from orchestrator.dispatch.revisions import pins_of
from orchestrator.records.spec import TrialSpec

GRACE_SECONDS = 3.0
"""From asking a rank to end until it is killed. A supervisor needs at most two for its record."""

LAUNCH_LOG = "launch.log"
"""In the attempt's folder: what supervisors themselves printed, before or beside their rank's log."""

_SHARED_MEMORY = Path("/dev/shm")


class LocalLauncher:
    """Starts one supervisor a rank on this machine, each in a process group of its own."""

    kind = "local"

    def __init__(
        self,
        python: str | None = None,
        parallel_trials: int = 1,
        setup: Sequence[str] = (),
        results_dir: str | None = None,
    ) -> None:
        self._python = python or sys.executable
        self._parallel = max(1, parallel_trials)
        self._setup = tuple(setup)
        self._results_dir = results_dir

    def new_beacon_dir(self, trial: str, attempt: str) -> str:
        """The name of a fresh folder in shared memory, or in the temporary folder where there is none.

        The ranks make it: a driver that is killed before its specification is written leaves none that nobody finds.
        """
        parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
        return str(parent / f"orchestrator-{os.geteuid()}-{trial[:12]}-{attempt}-{secrets.token_hex(8)}")

    def start(self, spec: TrialSpec, spec_file: Path) -> LocalStep:
        """Start all ranks of an attempt.

        Raises:
            LaunchError: no port or process could be had; nothing is left running.
        """
        try:
            port = HeldPort()
        except OSError as error:
            raise LaunchError(f"no free port for the rendezvous: {error}") from error
        step = LocalStep(port)
        command = behind_setup(self._setup, [self._python, "-m", "orchestrator.trial", str(spec_file)])
        started = 0
        try:
            with (Path(spec.run_dir) / LAUNCH_LOG).open("ab") as log:
                for rank in range(spec.world_size):
                    environment = self._environment(spec, rank, port.port)
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
                    )
                    step.add(rank, process)
                    started += 1
        except OSError as error:
            step.kill()
            step.close()
            raise LaunchError(f"rank {started} could not be started: {error}") from error
        return step

    def bring_home(self, spec: TrialSpec) -> list[str]:
        return bring_home(spec, spec.world_size)

    def close(self) -> list[str]:
        return []

    def _environment(self, spec: TrialSpec, rank: int, port: int) -> dict[str, str]:
        threads = max(1, (os.cpu_count() or 1) // (spec.world_size * self._parallel))
        environment = local_environment(os.environ, rank, spec.world_size, port, threads)
        pins = [pin.on_path for pin in pins_of(spec.config, self._results_dir or "")]
        if pins:
            environment["PYTHONPATH"] = os.pathsep.join([*pins, *filter(None, [environment.get("PYTHONPATH")])])
        return environment


def behind_setup(setup: Sequence[str], command: Sequence[str]) -> list[str]:
    """The command behind shell lines of the user, the first of which to fail ends it."""
    if not setup:
        return list(command)
    script = "\n".join(["set -e", *setup, 'exec "$@"'])
    return ["bash", "-c", script, "setup", *command]


def local_environment(
    inherited: Mapping[str, str], rank: int, world_size: int, port: int, threads: int
) -> dict[str, str]:
    """What a rank finds in its environment: where it stands, loopback for gloo, and its share of the cores.

    Variables of a scheduler are left out: this step is not one of its tasks.
    """
    kept = {key: value for key, value in inherited.items() if not key.startswith(("SLURM_", "PMI_", "PMIX_"))}
    kept.setdefault("OMP_NUM_THREADS", str(threads))
    kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return kept | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ORCHESTRATOR_PARENT_DEATH": str(os.getpid()),
    }


class LocalStep:
    """The supervisors of one attempt."""

    def __init__(self, port: HeldPort) -> None:
        self.exit_codes: dict[int, int] = {}
        self.launch_error: str | None = None
        self.scheduler: dict[str, Any] | None = None
        self.cut_short: str | None = None
        self._port = port
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._kill_at: float | None = None

    def add(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self._processes[rank] = process

    def poll(self) -> bool:
        """Note which ranks ended; end the rest when one failed, and kill what outlives the grace."""
        for rank, process in list(self._processes.items()):
            if _has_ended(process.pid):
                # Whatever a trainer left behind is in the supervisor's group. The supervisor is still unreaped here,
                # so its group's number cannot belong to anybody else.
                _signal_group(process.pid, signal.SIGKILL)
                self.exit_codes[rank] = process.wait()
                del self._processes[rank]
                if self.exit_codes[rank] != 0:
                    self.end()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            for process in self._processes.values():
                _signal_group(process.pid, signal.SIGKILL)
        return not self._processes

    def end(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + GRACE_SECONDS
            for process in self._processes.values():
                os.kill(process.pid, signal.SIGTERM)  # not `send_signal`, which reaps

    def kill(self) -> None:
        """End every rank at once and wait until it is gone."""
        for process in self._processes.values():
            _signal_group(process.pid, signal.SIGKILL)
        while not self.poll():
            time.sleep(0.01)

    def close(self) -> None:
        self._port.close()


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, leaving it unreaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # every member has ended: there is nobody to tell
        os.killpg(group, number)
