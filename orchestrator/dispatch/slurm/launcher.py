"""A trial's ranks as one step of the allocation that this process is in."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.schema import SlurmCluster
from orchestrator.dispatch.gather import is_home
from orchestrator.dispatch.launcher import LaunchError
from orchestrator.dispatch.local import GRACE_SECONDS, LAUNCH_LOG
from orchestrator.dispatch.rendezvous import HeldPort, port_elsewhere
from orchestrator.dispatch.revisions import pins_of
from orchestrator.dispatch.slurm import tied
from orchestrator.dispatch.slurm.accounting import Row, SlurmUnavailable, ask_for_steps, run_slurm
from orchestrator.dispatch.slurm.cluster import Shape, local_dir, shape_of
from orchestrator.dispatch.slurm.printed import end_of_job, exit_codes_of, memory_word
from orchestrator.dispatch.slurm.step import Ranks, as_flags, step_command
from orchestrator.records import layout
from orchestrator.records.spec import TrialSpec

_ACCOUNTS_SECONDS = 3.0
"""How long accounts may lag behind the end of a step."""
_OLD_DAYS = 7
"""After which no trial still writes to the folder that it made on a node."""
_NOT_FOR_STEPS = ("SLURM_CPU_BIND", "SLURM_MEM_", "SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_TRES_PER_TASK")
"""Of the job's environment, what srun would take as a wish about the step."""
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Allocation:
    """The job this process is in."""

    job_id: str
    nodes: str
    """As Slurm writes a list of nodes."""
    first_node: str
    node_count: int
    cpus_per_node: int | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Allocation:
        """The allocation that the environment tells of.

        Raises:
            LaunchError: there is none.
        """
        job_id = environ.get("SLURM_JOB_ID")
        nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
        if not job_id or not nodes:
            raise LaunchError("no Slurm allocation is held here: SLURM_JOB_ID is not set")
        try:
            names = run_slurm(["scontrol", "show", "hostnames", nodes]).split()
            first = names[0]
        except (SlurmUnavailable, IndexError) as error:
            raise LaunchError(f"the nodes of job {job_id} cannot be told: {error}") from error
        cpus = environ.get("SLURM_JOB_CPUS_PER_NODE") or environ.get("SLURM_CPUS_ON_NODE") or ""
        counts = [int(count) for count in re.findall(r"(?:^|,)(\d+)", cpus)]
        return cls(job_id, nodes, first, len(names), min(counts, default=None))


class SlurmLauncher:
    """Starts each attempt as one srun step over all its nodes."""

    kind = "slurm"

    def __init__(
        self,
        cluster: SlurmCluster,
        *,
        allocation: Allocation,
        results_dir: str,
        package: str,
        python: str,
        batch: str,
        setup_file: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._allocation = allocation
        self._results_dir = results_dir
        self._package = package
        self._python = python
        self._setup_file = setup_file
        self._ports: set[int] = set()
        # Of this batch alone: an allocation that the user holds may have several drivers.
        self._prefix = f"{local_dir(cluster)}/orchestrator-{os.geteuid()}-{allocation.job_id}-{batch[:8]}-"
        self._container = f"orchestrator-{allocation.job_id}-{batch[:8]}"

    def new_beacon_dir(self, trial: str, attempt: str) -> str:
        """Made by each node's first supervisor. Flat, since a shared parent could belong to somebody else."""
        return f"{self._prefix}{trial}-{attempt}"

    def start(self, spec: TrialSpec, spec_file: Path) -> SlurmStep:
        shape = shape_of(self._cluster, spec.world_size)
        held, port = self._port(shape)
        name = f"{spec.trial}-{spec.attempt}"
        pins = pins_of(spec.config, self._results_dir)
        ranks = Ranks(
            name=name,
            spec_file=str(spec_file),
            results_dir=self._results_dir,
            package=self._package,
            python=self._python,
            port=port,
            setup_file=self._setup_file,
            first_on_path=[pin.on_path for pin in pins],
            also_mounted=[str(folder) for pin in pins for folder in (pin.worktree, pin.repository) if folder],
            environment=sorted(spec.environment),
        )
        command = step_command(
            self._cluster,
            shape,
            ranks,
            cpus_per_task=self._cpus_per_task(shape),
            container_name=self._container,
        )
        log = Path(spec.run_dir) / LAUNCH_LOG
        try:
            with log.open("ab") as stream:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(tied.__file__), str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env=step_environment(os.environ, spec.environment),
                    process_group=0,
                )
        except OSError as error:
            if held is not None:
                held.close()
            raise LaunchError(f"srun could not be started: {error}") from error
        return SlurmStep(process, self._allocation, name, log, held)

    def bring_home(self, spec: TrialSpec) -> list[str]:
        """Collect on the nodes what is not home yet; where all is, the folders wait for the end of the job."""
        shape = shape_of(self._cluster, spec.world_size)
        if all(is_home(spec, rank) for rank in range(spec.world_size)):
            return []
        gather = ["-m", "orchestrator.dispatch.gather", str(Path(spec.run_dir) / layout.SPEC_FILE)]
        return self._on_nodes(shape.nodes, [self._python, *gather, str(shape.ranks_per_node)])

    def close(self) -> list[str]:
        """Remove what this batch's ranks and its container left on the nodes, and what killed drivers did long ago."""
        local, user = local_dir(self._cluster), os.geteuid()
        script = f'rm -rf -- "{self._prefix}"*; '
        old = f"-maxdepth 1 -type d -user {user} -name 'orchestrator-{user}-*' -mtime +{_OLD_DAYS}"
        script += f'find "{local}/" {old} -exec rm -rf -- {{}} + 2>/dev/null; '
        if self._cluster.container.kind == "pyxis" and self._cluster.container.name is None:
            script += f"if command -v enroot >/dev/null; then enroot remove -f pyxis_{self._container}; fi; "
        return self._on_nodes(self._allocation.node_count, ["sh", "-c", f"{script}true"])

    def _on_nodes(self, nodes: int, command: list[str]) -> list[str]:
        flags: dict[str, str | int | bool | None] = {
            "job-name": "orchestrator-gather",
            "nodes": nodes,
            "ntasks": nodes,
            "ntasks-per-node": 1,
            "overlap": True,
            "mem": 0,
            "mpi": "none",
            "cpu-bind": "none",
            "gres": "none" if self._cluster.gpu_option != "none" else None,
            "export": "ALL",
        }
        try:
            done = subprocess.run(
                ["srun", *as_flags(flags), *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env=step_environment(os.environ, {}),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return [f"the nodes could not be asked for what ranks left there: {error}"]
        if done.returncode == 0:
            return []
        return [line for line in done.stderr.splitlines() if line][-8:]

    def _port(self, shape: Shape) -> tuple[HeldPort | None, int]:
        """Held where rank 0 will certainly listen on this machine; else one that its kernel gives to nobody."""
        here = socket.gethostname().partition(".")[0] == self._allocation.first_node.partition(".")[0]
        if not here or self._allocation.node_count != shape.nodes:
            port = port_elsewhere(self._ports)
            self._ports.add(port)
            return None, port
        try:
            held = HeldPort()
        except OSError as error:
            raise LaunchError(f"no free port for the rendezvous: {error}") from error
        return held, held.port

    def _cpus_per_task(self, shape: Shape) -> int | None:
        if self._cluster.cpus_per_task is not None:
            return self._cluster.cpus_per_task
        if self._allocation.cpus_per_node is None:
            return None
        return max(1, self._allocation.cpus_per_node // shape.ranks_per_node)


class SlurmStep:
    """One srun and the step that it started."""

    def __init__(
        self, process: subprocess.Popen[bytes], allocation: Allocation, name: str, log: Path, port: HeldPort | None
    ) -> None:
        self.exit_codes: dict[int, int] = {}
        self.launch_error: str | None = None
        self.scheduler: dict[str, Any] | None = {
            "job_id": allocation.job_id,
            "step_id": None,
            "nodes": allocation.nodes,
        }
        self._process = process
        self._job_id = allocation.job_id
        self._name = name
        self._log = log
        self._read = 0
        self._port = port
        self._kill_at: float | None = None
        self._memory_word: str | None = None
        self.cut_short: str | None = None

    def poll(self) -> bool:
        """Whether srun has ended. `--kill-on-bad-exit` ends the other ranks; what outlives the grace is killed here,
        since Slurm itself waits for its KillWait, 30 s by default."""
        ended = self._process.poll() is not None
        self._read_log()
        if not ended:
            if self._kill_at is None and any(code != 0 for code in self.exit_codes.values()):
                self._kill_at = time.monotonic() + GRACE_SECONDS
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._process.send_signal(signal.SIGTERM)  # srun answers by killing every task at once
                self._kill_at = time.monotonic() + GRACE_SECONDS
            return False
        self._settle()
        return True

    def end(self) -> None:
        if self._kill_at is not None:
            return
        self._kill_at = time.monotonic() + GRACE_SECONDS
        step = self._find_step()
        if step is None:
            self._kill_at = time.monotonic()  # no task runs yet: nothing would hear a gentler word
            return
        with contextlib.suppress(SlurmUnavailable):  # it has ended in between
            run_slurm(["scancel", "--signal=TERM", step])

    def close(self) -> None:
        if self._port is not None:
            self._port.close()

    def _find_step(self) -> str | None:
        try:
            text = run_slurm(["squeue", "--steps", "--noheader", "--jobs", self._job_id, "--format", "%i|%j"])
        except SlurmUnavailable:
            return None
        steps = [line.partition("|") for line in text.splitlines()]
        return next((identity for identity, _, name in steps if name.strip() == self._name), None)

    def _read_log(self) -> None:
        try:
            with self._log.open("rb") as stream:
                stream.seek(self._read)
                data = stream.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        text = whole.decode(errors="replace")
        self.exit_codes |= exit_codes_of(text)
        self._memory_word = self._memory_word or memory_word(text)
        self.cut_short = self.cut_short or end_of_job(text)

    def _settle(self) -> None:
        """Slurm's word on a step that did not end well; one that did needs none."""
        status = self._process.returncode
        if status == 0 or self.scheduler is None or "state" in self.scheduler:
            return
        row = self._accounted_step()
        self.scheduler["srun_status"] = status
        if self._memory_word is not None:
            self.scheduler["reason"] = self._memory_word
        if row is not None:
            self.scheduler |= {
                "step_id": f"{row.job_id}.{row.step}",
                "state": row.state,
                "exit_code": row.exit_code,
                "nodes": row.nodes,
            }

    def _accounted_step(self) -> Row | None:
        """The step's row, once it says that the step failed: accounts lag, and may call it COMPLETED at first."""
        deadline = time.monotonic() + _ACCOUNTS_SECONDS
        while True:
            steps = ask_for_steps(self._job_id)
            if steps is None:
                return None
            row = next((step for step in reversed(steps) if step.name == self._name), None)
            if (row is not None and row.word not in ("RUNNING", "COMPLETED")) or time.monotonic() > deadline:
                return row
            time.sleep(0.3)


def step_environment(inherited: Mapping[str, str], trial: Mapping[str, str]) -> dict[str, str]:
    """What srun is given: the driver's environment and the trial's, without another's rank and the job's wishes."""
    kept = {
        key: value
        for key, value in inherited.items()
        if key not in _RANK_VARIABLES and not key.startswith(_NOT_FOR_STEPS)
    }
    return {**kept, **trial}
