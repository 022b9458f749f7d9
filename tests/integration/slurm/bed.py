"""The test cluster, and studies of fake trainers on it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.dispatch.attempt import attempt_dirs, judge, read_attempt, read_spec
from orchestrator.dispatch.batch import Ask
from orchestrator.dispatch.handover import hand_over, settle
from orchestrator.dispatch.liveness import read_driver_state
from orchestrator.dispatch.slurm.record import OPEN, read_submission
from orchestrator.dispatch.submit import Submitted
from orchestrator.outcome import Outcome
from orchestrator.plan.candidate import Candidate, trial_id
from orchestrator.records import layout
from orchestrator.records.beacon import BeaconReader
from orchestrator.records.jsonfile import FormatError
from orchestrator.records.spec import AttemptRecord
from orchestrator.vocabulary import Stage

ROOT = Path(__file__).parents[3]
FAKE = str(Path(__file__).parents[1])
"""Where `fake_trainer` lies."""


@dataclass
class Bed:
    """Four nodes with eight GPUs each."""

    folder: Path
    port: int
    nodes: int = 4
    gpus: int = 8
    settings: dict[str, str] | None = None
    """What it was started with; None while it is down."""

    def start(self, **settings: str) -> None:
        """Bring it up in this shape; nothing where it is."""
        if settings == self.settings:
            return
        self._call("start", str(self.folder), str(self.nodes), str(self.gpus), **settings)
        os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.settings = settings

    def stop(self) -> None:
        self._call("stop", str(self.folder))

    def kill_node(self, node: int) -> None:
        self._call("kill-node", str(self.folder), str(node))

    def start_node(self, node: int) -> None:
        self._call("start-node", str(self.folder), str(node))

    def nudge(self, job: str) -> None:
        """Start a requeued job now: Slurm holds it back for two minutes."""
        self._call("nudge", str(self.folder), job)

    def expire(self, job: str, seconds: int = 1) -> None:
        self._call("expire", str(self.folder), job, str(seconds))

    def cancel_all(self) -> None:
        def gone() -> bool:
            subprocess.run(["scancel", "--user", "root"], check=False, capture_output=True)
            return not slurm("squeue", "--noheader")

        until(gone, 40)

    def _call(self, *words: str, **settings: str) -> None:
        script = str(ROOT / "slurm" / "testbed.sh")
        environment = {**os.environ, "SLURMBED_PORT": str(self.port), **settings}
        done = subprocess.run(["bash", script, *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def memory_cgroup() -> str:
    """The version of the memory cgroup that this machine lets its root write; `no` where there is none."""
    for version, folder in (("v1", "/sys/fs/cgroup/memory"), ("v2", "/sys/fs/cgroup")):
        control = {"v1": "memory.limit_in_bytes", "v2": "cgroup.subtree_control"}[version]
        path = Path(folder)
        if (path / control).exists() and os.access(path, os.W_OK) and not os.statvfs(path).f_flag & os.ST_RDONLY:
            return version
    return "no"


def slurm(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
    return value


def request(results: Path, name: str, **more: Any) -> dict[str, Any]:
    """A request for a fake trainer on two nodes with two ranks each."""
    cluster = {
        "kind": "slurm",
        "gpus_per_node": 2,
        "gpu_option": "none",
        "time": 10,
        "retries": 0,
        **more.get("cluster", {}),
    }
    return {
        "recompute_granularity": "selective",
        "recompute_modules": [] if name == "control" else [name],
        "recompute_method": None,
        "recompute_num_layers": None,
        "model": {"name": "fake"},
        "parallelism": {"world_size": more.get("world_size", 4)},
        "training": {"train_iters": 2, "steady_window": [1, 2]},
        "trainer": {
            "name": "fake_trainer:train",
            "fake": more.get("fake", {}).get(name, {}),
            **more.get("trainer", {}),
        },
        "cluster": cluster,
        "study": {"name": "study"},
        "results_dir": str(results),
    }


TRIALS = ("control", "mlp", "moe")


def hanging(*names: str) -> dict[str, Any]:
    """Tell these trials to hang in their first forward."""
    return {name: {"stage": "forward", "iteration": 1, "what": "hang", "ranks": [0, 1, 2, 3]} for name in names}


def failing(what: str, **more: Any) -> dict[str, Any]:
    """What a trainer is told that fails in its first forward."""
    return {"stage": "forward", "iteration": 1, "what": what, **more}


def running_trial(results: Path, batch: str, ranks: int = 4) -> str | None:
    """The name of the trial all of whose ranks are in their forward."""
    state = read_driver_state(layout.batch_dir(results, batch))
    if state is None or not state.current:
        return None
    beacons = list(Path(state.current[0].beacon_dir).glob("*.beacon"))
    try:
        ready = [beacon for beacon in beacons if BeaconReader(beacon).last.stage is Stage.FORWARD]
    except (FormatError, OSError):
        return None
    return state.current[0].name if len(ready) == ranks else None


def ask(results: Path, name: str, **more: Any) -> Ask:
    candidate = Candidate(name, request(results, name, **more))
    return Ask(trial_id(candidate), candidate)


def trial_of(results: Path, name: str, **more: Any) -> str:
    return ask(results, name, **more).trial


def submit(results: Path, *names: str, fake: dict[str, Any] | None = None, **more: Any) -> Submitted:
    """Submit trials of these names; `fake` says by name what their trainers do."""
    os.environ["FAKE_TOLD"] = json.dumps(fake or {})
    asks = [ask(results, name, **more) for name in names]
    return hand_over(asks, asks[0].candidate.request, "study", results)


def job_of(results: Path, submitted: Submitted, index: int = 0) -> str:
    submission = read_submission(layout.batch_dir(results, submitted.batches[index].batch))
    assert submission is not None
    assert submission.job_id is not None
    return submission.job_id


def wait_over(results: Path, *batches: str, seconds: float = 90.0) -> None:
    """Until Slurm has said that the jobs of these batches ended, and it is written down."""

    def over() -> bool:
        settle(results)
        found = [read_submission(layout.batch_dir(results, batch)) for batch in batches]
        return all(one is not None and one.state not in OPEN for one in found)

    until(over, seconds)


def state_of(results: Path, batch: str) -> str:
    submission = read_submission(layout.batch_dir(results, batch))
    assert submission is not None
    return submission.state


def attempts(results: Path, trial: str) -> list[AttemptRecord]:
    return [record for folder in attempt_dirs(results, trial) if (record := read_attempt(folder)) is not None]


def outcomes(results: Path, trial: str) -> list[Outcome]:
    found = []
    for folder in attempt_dirs(results, trial):
        record, spec = read_attempt(folder), read_spec(folder)
        if record is not None and spec is not None:  # else its driver was killed before anything began
            found.append(judge(record, spec))
    return found


def labels(results: Path, trial: str) -> list[str | None]:
    return [outcome.label for outcome in outcomes(results, trial)]
