"""Allocations that a person holds or submitted by hand: their drivers are processes that no job of ours is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from bed import ROOT, Bed, ask, attempts, hanging, labels, running_trial, slurm, submit, until

from orchestrator.dispatch.attempt import attempt_dirs, rank_records
from orchestrator.dispatch.handover import settle
from orchestrator.dispatch.liveness import read_driver_state
from orchestrator.dispatch.submit import batch_dirs, live_batches
from orchestrator.records import layout

pytestmark = pytest.mark.integration

HERE = {"cluster": {"kind": "here"}}


@pytest.fixture
def held(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A job of two nodes that this process holds from outside of them, as a shell of salloc on a login node does."""
    command = ["salloc", "--no-shell", "--nodes=2", "--ntasks-per-node=2", "--exclusive", "--mem=0", "--time=10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (job,) = re.findall(r"Granted job allocation (\d+)", done.stderr)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_JOB_NODELIST", slurm("squeue", "-h", "-j", job, "-o", "%N"))
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "64(x2)")
    yield job
    subprocess.run(["scancel", job], check=False)


def ranks_of(results: Path) -> list[psutil.Process]:
    """Supervisors and trainers of this results folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(str(results) in word for word in words) and any(word.startswith("orchestrator.trial") for word in words):
            found.append(process)
    return found


def test_a_killed_driver_takes_its_ranks_along_and_leaves_nothing_on_the_nodes(held: str, results: Path) -> None:
    submitted = submit(results, "control", fake=hanging("control"), **HERE)
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "control")
    state = read_driver_state(layout.batch_dir(results, batch))
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    until(lambda: not ranks_of(results), 10)
    assert settle(results)
    assert not list(Path("/tmp").glob(f"orchestrator-{os.geteuid()}-{held}-*"))
    trial = ask(results, "control", **HERE).trial
    assert len(rank_records(attempt_dirs(results, trial)[0])) == 4, "every rank's last word came home"
    assert labels(results, trial) == [None], "it is open"
    submit(results, "control", **HERE)
    until(lambda: not live_batches(results))
    assert labels(results, trial) == [None, "pass"]


def test_two_drivers_of_one_allocation_leave_each_others_ranks_alone(held: str, results: Path) -> None:
    other = results / "other"
    first = submit(results, "control", fake=hanging("control"), **HERE).batches[0].batch
    until(lambda: running_trial(results, first) == "control")
    more = {"cluster": {**HERE["cluster"], "srun": {"overlap": True}}}
    submit(other, "control", **more)
    until(lambda: batch_dirs(other) and not live_batches(other))
    assert labels(other, ask(other, "control", **more).trial) == ["pass"]
    assert running_trial(results, first) == "control"


def by_hand(results: Path, tmp_path: Path) -> str:
    """A person's own job, whose script hands a hanging trial over to a driver beside itself; its number."""
    script = (
        "import sys, time; from pathlib import Path; from bed import submit, hanging;"
        f"submit(Path(sys.argv[1]), 'control', fake=hanging('control'), **{HERE!r}); time.sleep(600)"
    )
    (tmp_path / "job.sh").write_text(f'#!/bin/bash\nexec {sys.executable} -c "{script}" "{results}"\n')
    path = os.pathsep.join([str(Path(__file__).parent), str(ROOT), os.environ["PYTHONPATH"]])
    outside = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_JOB")}
    done = subprocess.run(
        ["sbatch", "--parsable", "-N2", "--ntasks-per-node=2", "--exclusive", "--mem=0", "-o", str(tmp_path / "log"),
         str(tmp_path / "job.sh")],
        env={**outside, "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_persons_own_allocation_at_its_time_limit_leaves_its_trial_open(
    bed: Bed, held: str, results: Path, tmp_path: Path
) -> None:
    """One with its driver outside, on a login node, and one with its driver inside, which ends with it: what it could
    not write itself is asked of Slurm."""
    outside, inside = results / "outside", results / "inside"
    job = by_hand(inside, tmp_path)
    first = submit(outside, "control", fake=hanging("control"), **HERE).batches[0].batch
    until(lambda: running_trial(outside, first) == "control")
    until(lambda: batch_dirs(inside) and running_trial(inside, batch_dirs(inside)[0].name) == "control")
    bed.expire(held)
    bed.expire(job)
    until(lambda: not live_batches(outside) and not slurm("squeue", "-h", "-j", f"{held},{job}"), 90)
    settle(outside)
    settle(inside)
    trial = ask(results, "control", **HERE).trial
    assert labels(outside, trial) == labels(inside, trial) == [None]
    (record,) = attempts(inside, trial)
    assert record.cut_short == "job_time_limit" or (record.scheduler or {}).get("state") == "TIMEOUT"
