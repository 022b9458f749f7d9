"""The host's memory: a limit that Slurm enforces by looking, and one that the kernel enforces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from bed import Bed, ask, attempts, failing, hanging, job_of, labels, running_trial, slurm, submit, until, wait_over

pytestmark = pytest.mark.integration

EAT = f"{sys.executable} -c 'x = b\"x\" * (900 << 20); import time; time.sleep(30)'"


def small(**cluster: Any) -> dict[str, Any]:
    return {"world_size": 2, "cluster": {"mem": "600M", "gpus_per_node": 2, "cpus_per_task": 1, **cluster}}


def states(job: str) -> dict[str, str]:
    """Slurm's word on a job, under an empty name, and on its steps."""
    rows = [row.split("|") for row in slurm("sacct", "-j", job, "-nPo", "JobID,JobName,State").splitlines()]
    return {(name if "." in identity else ""): state for identity, name, state in rows}


def test_a_step_that_slurm_kills_over_its_memory_is_a_host_oom_though_its_row_says_cancelled(
    bed: Bed, results: Path
) -> None:
    more = small()
    submitted = submit(results, "control", fake={"control": failing("eat")}, **more)
    wait_over(results, submitted.batches[0].batch)
    trial = ask(results, "control", **more).trial
    assert labels(results, trial) == ["failed:host_oom"]
    assert "exceeded memory limit" in (attempts(results, trial)[0].scheduler or {})["reason"]


def test_a_rank_that_the_kernel_kills_over_its_memory_is_a_host_oom(limited: Bed, results: Path) -> None:
    """The trainer alone is killed, so that Slurm 22.05 may call the step COMPLETED: the rank's record knows better."""
    more = small()
    submitted = submit(results, "control", fake={"control": failing("eat")}, **more)
    wait_over(results, submitted.batches[0].batch)
    assert labels(results, ask(results, "control", **more).trial) == ["failed:host_oom"]


def test_a_step_that_ends_out_of_memory_is_a_host_oom(limited: Bed, results: Path) -> None:
    """What every task runs before there is a supervisor is killed."""
    more = small(setup=[f"exec {EAT}"])
    submitted = submit(results, "control", **more)
    wait_over(results, submitted.batches[0].batch)
    trial = ask(results, "control", **more).trial
    assert states(job_of(results, submitted))[f"{trial}-001"] == "OUT_OF_MEMORY"
    assert (attempts(results, trial)[0].scheduler or {})["state"] == "OUT_OF_MEMORY"
    assert labels(results, trial) == ["failed:host_oom"]


def test_a_job_that_ends_out_of_memory_is_a_host_oom_of_the_trial_that_ran(
    limited: Bed, results: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    more = small(driver_setup=[f"(while [ ! -e {go} ]; do sleep 0.2; done; {EAT} || kill -9 $$) &"])
    submitted = submit(results, "control", fake=hanging("control"), **more)
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch, ranks=2) == "control")
    go.touch()
    wait_over(results, batch)
    assert states(job_of(results, submitted))[""] == "OUT_OF_MEMORY"
    assert labels(results, ask(results, "control", **more).trial) == ["failed:host_oom"]
