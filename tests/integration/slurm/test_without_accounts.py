"""A cluster without sacct: the queue says what became of jobs."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bed import (
    TRIALS,
    Bed,
    failing,
    hanging,
    job_of,
    labels,
    running_trial,
    slurm,
    state_of,
    submit,
    trial_of,
    until,
    wait_over,
)

from orchestrator.dispatch.handover import settle
from orchestrator.dispatch.slurm.record import read_submission, write_submission
from orchestrator.records import layout

pytestmark = pytest.mark.integration


def test_the_queue_says_what_became_of_a_grid(bare: Bed, results: Path) -> None:
    assert subprocess.run(["sacct"], capture_output=True, check=False).returncode != 0, "this cluster keeps accounts"
    submitted = submit(results, *TRIALS, fake={"mlp": failing("kill"), "moe": failing("eat")}, cluster={"mem": "600M"})
    wait_over(results, submitted.batches[0].batch)
    found = {name: labels(results, trial_of(results, name)) for name in TRIALS}
    assert found == {"control": ["pass"], "mlp": ["failed:crash"], "moe": ["failed:host_oom"]}


def test_a_job_whose_command_was_killed_is_found_in_the_queue_by_its_name(bare: Bed, results: Path) -> None:
    submitted = submit(results, "control", cluster={"sbatch": {"begin": "now+1hour"}})
    batch, job = submitted.batches[0].batch, job_of(results, submitted)
    folder = layout.batch_dir(results, batch)
    submission = read_submission(folder)
    assert submission is not None
    write_submission(folder, replace(submission, state="submitting", job_id=None))
    settle(results)
    found = read_submission(folder)
    assert found is not None
    assert (found.state, found.job_id) == ("submitted", job)
    slurm("scancel", job)
    wait_over(results, batch, seconds=20)
    assert labels(results, trial_of(results, "control")) == ["failed:cancelled"]


def test_a_dead_node_is_a_node_failure_by_the_queues_word(bare: Bed, results: Path) -> None:
    submitted = submit(results, "control", fake=hanging("control"), cluster={"requeue": False})
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "control")
    node = int(slurm("squeue", "-h", "-j", job_of(results, submitted), "-o", "%N").strip("node[]").split("-")[-1])
    bare.kill_node(node)
    try:
        wait_over(results, batch)
    finally:
        bare.start_node(node)
    assert labels(results, trial_of(results, "control")) == ["failed:node_failure"]


def test_a_job_that_the_queue_has_forgotten_is_over(bare: Bed, results: Path) -> None:
    submitted = submit(results, "control", fake=hanging("control"))
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "control")
    slurm("scancel", "--signal=KILL", "--full", job_of(results, submitted))
    until(lambda: not slurm("squeue", "-h", "-j", job_of(results, submitted)))
    folder = layout.batch_dir(results, batch)
    submission = read_submission(folder)
    assert submission is not None
    write_submission(folder, replace(submission, job_id="1", at=time.time() - 3600))
    wait_over(results, batch, seconds=10)
    assert state_of(results, batch) == "over"
    assert labels(results, trial_of(results, "control")) == [None], "it is open again"
    assert submit(results, "control").batches
