"""Every way in which a job or a step can end, on a real Slurm, and the label that it ends in."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from bed import (
    TRIALS,
    Bed,
    attempts,
    failing,
    hanging,
    job_of,
    labels,
    outcomes,
    running_trial,
    slurm,
    state_of,
    submit,
    trial_of,
    until,
    wait_over,
)

from orchestrator.dispatch.attempt import attempt_dirs, rank_records
from orchestrator.dispatch.handover import settle
from orchestrator.dispatch.liveness import read_driver_state
from orchestrator.dispatch.submit import batch_dirs, cancel, live_batches, read_batch
from orchestrator.records import layout
from orchestrator.vocabulary import Stage

pytestmark = pytest.mark.integration


def test_a_grid_runs_in_one_job_and_every_trial_is_a_step(bed: Bed, results: Path) -> None:
    submitted = submit(results, *TRIALS)
    until(lambda: not live_batches(results))  # a watcher ends when the driver is done, whether or not anybody settles
    wait_over(results, submitted.batches[0].batch)
    assert [labels(results, trial_of(results, name)) for name in TRIALS] == [["pass"]] * 3
    rows = slurm("sacct", "-j", job_of(results, submitted), "-nPo", "JobName,State").splitlines()
    assert [row for row in rows if row.startswith(trial_of(results, "mlp"))] == [
        f"{trial_of(results, 'mlp')}-001|COMPLETED"
    ]
    assert not list(Path("/tmp").glob(f"orchestrator-{os.geteuid()}-{job_of(results, submitted)}-*"))


def test_a_killed_rank_frees_both_nodes_within_five_seconds(bed: Bed, results: Path) -> None:
    submitted = submit(results, "control", fake=hanging("control"))
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "control")
    job = job_of(results, submitted)
    trainers = [process for process in psutil.process_iter() if is_trainer(process, results)]
    assert len(trainers) == 4
    trainers[-1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: not [process for process in psutil.process_iter() if is_trainer(process, results)])
    until(lambda: slurm("squeue", "--steps", "-h", "-j", job, "-o", "%j").splitlines() in (["batch"], []))
    assert time.monotonic() - killed < 5.0
    wait_over(results, batch)
    (outcome,) = outcomes(results, trial_of(results, "control"))
    assert outcome.stage is Stage.FORWARD
    assert outcome.label == "failed:crash"


def is_trainer(process: psutil.Process, results: Path) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "orchestrator.trial.child" in words and any(str(results) in word for word in words)


def test_a_rank_that_ignores_everything_is_killed_before_slurm_would(bed: Bed, results: Path) -> None:
    """A stopped supervisor hears no SIGTERM: the driver does not wait for Slurm's KillWait of 30 s."""
    submitted = submit(results, "control", fake=hanging("control"))
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "control")
    trainers = [process for process in psutil.process_iter() if is_trainer(process, results)]
    trainers[0].parent().send_signal(signal.SIGSTOP)
    trainers[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: not [process for process in psutil.process_iter() if is_trainer(process, results)], 15)
    assert time.monotonic() - killed < 8.0


def test_a_cancelled_job_ends_its_trial_as_cancelled(bed: Bed, results: Path) -> None:
    fake = hanging("mlp")
    submitted = submit(results, *TRIALS, fake=fake)
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "mlp")
    slurm("scancel", job_of(results, submitted))
    wait_over(results, batch)
    assert labels(results, trial_of(results, "control")) == ["pass"]
    assert labels(results, trial_of(results, "mlp")) == ["failed:cancelled"]
    assert labels(results, trial_of(results, "moe")) == []


def test_cancelling_a_waiting_job_takes_it_from_the_queue(bed: Bed, results: Path) -> None:
    submitted = submit(results, "control", cluster={"sbatch": {"begin": "now+1hour"}})
    batch = submitted.batches[0].batch
    cancel(results, batch)
    wait_over(results, batch, seconds=20)
    assert labels(results, trial_of(results, "control")) == ["failed:cancelled"]


def test_cancelling_a_running_batch_is_heard_by_its_driver(bed: Bed, results: Path) -> None:
    fake = hanging("control")
    submitted = submit(results, "control", "mlp", fake=fake)
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "control")
    cancel(results, batch)
    wait_over(results, batch, seconds=20)
    assert labels(results, trial_of(results, "control")) == ["failed:cancelled"]
    assert labels(results, trial_of(results, "mlp")) == []


def test_a_refused_submission_ends_its_trials_in_sbatchs_words(bed: Bed, results: Path) -> None:
    submitted = submit(results, "control", "mlp", cluster={"partition": "nowhere"})
    assert state_of(results, submitted.batches[0].batch) == "refused"
    for name in ("control", "mlp"):
        assert labels(results, trial_of(results, name)) == ["failed:submission"]
        (record,) = attempts(results, trial_of(results, name))
        assert "invalid partition" in (record.launch_error or "")


def test_a_failing_setup_line_is_a_launch_failure_that_names_it(bed: Bed, results: Path) -> None:
    more = {"cluster": {"setup": ["export A=1", "module load no-such-thing"]}}
    submitted = submit(results, "control", **more)
    wait_over(results, submitted.batches[0].batch)
    trial = trial_of(results, "control", **more)
    assert labels(results, trial) == ["failed:launch"]
    assert "no-such-thing" in (attempts(results, trial)[0].launch_error or "")


def test_a_failing_line_of_the_job_itself_is_a_launch_failure(bed: Bed, results: Path) -> None:
    submitted = submit(results, "control", cluster={"driver_setup": ["echo there is no /opt/site >&2", "false"]})
    wait_over(results, submitted.batches[0].batch)
    assert labels(results, trial_of(results, "control")) == ["failed:launch"]
    assert "/opt/site" in (attempts(results, trial_of(results, "control"))[0].launch_error or "")


def test_a_dead_node_without_requeueing_is_a_node_failure_and_open_again(bed: Bed, results: Path) -> None:
    fake = hanging("control")
    submitted = submit(results, "control", fake=fake, cluster={"requeue": False})
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "control")
    node = int(slurm("squeue", "-h", "-j", job_of(results, submitted), "-o", "%N").strip("node[]").split("-")[-1])
    bed.kill_node(node)
    try:
        wait_over(results, batch)
        assert labels(results, trial_of(results, "control")) == ["failed:node_failure"]
        again = submit(results, "control", fake=fake)
        assert again.batches, "a node failure is no result: the trial is run again"
    finally:
        bed.start_node(node)


def test_a_requeued_job_goes_on_where_it_was(bed: Bed, results: Path) -> None:
    fake = hanging("mlp")
    submitted = submit(results, *TRIALS, fake=fake)
    batch = submitted.batches[0].batch
    job = job_of(results, submitted)
    until(lambda: running_trial(results, batch) == "mlp")
    slurm("scontrol", "requeue", job)
    until(lambda: slurm("squeue", "-h", "-j", job, "-o", "%t") == "PD")
    bed.nudge(job)
    until(lambda: len(attempts(results, trial_of(results, "mlp"))) == 2, 90)
    until(lambda: running_trial(results, batch) == "mlp")
    state = read_driver_state(layout.batch_dir(results, batch))
    assert state is not None
    assert state.job is not None
    assert state.job["restarts"] == 1
    cancel(results, batch, [trial_of(results, "mlp")])
    wait_over(results, batch)
    assert labels(results, trial_of(results, "control")) == ["pass"], "what had its result was not run again"
    assert labels(results, trial_of(results, "moe")) == ["pass"]
    assert labels(results, trial_of(results, "mlp"))[-1] == "failed:cancelled"


def test_a_job_that_a_dead_node_requeues_goes_on_elsewhere(bed: Bed, results: Path) -> None:
    submitted = submit(results, "control", fake={"control": failing("hang", attempt="001", ranks=[0, 1, 2, 3])})
    batch, job = submitted.batches[0].batch, job_of(results, submitted)
    until(lambda: running_trial(results, batch) == "control")
    node = int(slurm("squeue", "-h", "-j", job, "-o", "%N").strip("node[]").split("-")[-1])
    bed.kill_node(node)
    try:
        until(lambda: slurm("squeue", "-h", "-j", job, "-o", "%t") == "PD")
        bed.nudge(job)
        wait_over(results, batch)
    finally:
        bed.start_node(node)
    assert labels(results, trial_of(results, "control")) == ["failed:node_failure", "pass"]


def test_a_preempted_trial_says_so_and_is_not_lost(bed: Bed, results: Path) -> None:
    """One in a job that goes, and one in a job that is put back into the queue: both give way to the same other."""
    low = {requeue: {"cluster": {"partition": "low", "requeue": requeue}} for requeue in (False, True)}
    folders = {requeue: results / f"requeue-{requeue}" for requeue in low}
    made = {
        requeue: submit(folder, "control", fake=hanging("control"), **low[requeue])
        for requeue, folder in folders.items()
    }
    batches = {requeue: submitted.batches[0].batch for requeue, submitted in made.items()}
    for requeue, folder in folders.items():
        until(lambda folder=folder, batch=batches[requeue]: running_trial(folder, batch) == "control")
    subprocess.run(["sbatch", "-p", "gpu", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 5"], check=True)
    wait_over(folders[False], batches[False])
    put_back = job_of(folders[True], made[True])
    until(lambda: slurm("squeue", "-h", "-j", put_back, "-o", "%t") == "PD")
    settle(folders[True])
    cancel(folders[True], batches[True])
    wait_over(folders[True], batches[True])
    for requeue, folder in folders.items():
        assert labels(folder, trial_of(folder, "control", **low[requeue]))[0] == "failed:preempted"


def test_a_suspended_job_is_waited_for(bed: Bed, results: Path) -> None:
    fake = hanging("control")
    submitted = submit(results, "control", fake=fake)
    batch = submitted.batches[0].batch
    job = job_of(results, submitted)
    until(lambda: running_trial(results, batch) == "control")
    slurm("scontrol", "suspend", job)
    assert not settle(results)
    assert state_of(results, batch) == "submitted"
    slurm("scontrol", "resume", job)
    cancel(results, batch)
    wait_over(results, batch)


def test_a_job_at_its_time_limit_hands_what_is_left_to_another(bed: Bed, results: Path) -> None:
    fake = hanging("mlp")
    submitted = submit(results, "control", "mlp", fake=fake)
    batch = submitted.batches[0].batch
    until(lambda: running_trial(results, batch) == "mlp")
    bed.expire(job_of(results, submitted), 60)  # the warning comes two minutes before
    wait_over(results, batch, seconds=120)
    assert labels(results, trial_of(results, "control"))[0] == "pass"
    assert labels(results, trial_of(results, "mlp"))[0] is None, "its job's limit is not its own"
    (next_one,) = until(lambda: [live for live in live_batches(results) if live.batch != batch])
    roles = [(trial.role, trial.name) for trial in read_batch(layout.batch_dir(results, next_one.batch)).trials]
    assert roles == [("control-first", "control"), ("trial", "mlp")]
    until(lambda: len(attempts(results, trial_of(results, "control"))) == 2)


def test_a_job_whose_function_never_arrived_never_started_and_cost_no_attempt(
    bed: Bed, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the submitting command was killed between sbatch and the file that sbatch's job waits for."""
    path = os.environ["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent / "impatient"), path]))
    submitted = submit(results, "control", cluster={"sbatch": {"begin": "now+1hour"}})
    batch, job = submitted.batches[0].batch, job_of(results, submitted)
    for pickle in (layout.batch_dir(results, batch) / "submitit").glob("*.pkl"):
        pickle.unlink()
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now")
    wait_over(results, batch)
    assert state_of(results, batch) == "never-started"
    assert not attempts(results, trial_of(results, "control"))
    monkeypatch.setenv("PYTHONPATH", path)
    again = submit(results, "control")
    wait_over(results, again.batches[0].batch)
    assert labels(results, trial_of(results, "control")) == ["pass"]


def test_a_trial_that_a_node_failed_runs_again_without_that_node(bed: Bed, results: Path) -> None:
    broken = failing("raise", attempt="001", message="CUDA error: uncorrectable ECC error encountered")
    submitted = submit(results, "control", "mlp", fake={"mlp": broken}, cluster={"retries": 1})
    first = submitted.batches[0].batch
    wait_over(results, first)
    (second,) = [folder.name for folder in batch_dirs(results) if folder.name != first]
    wait_over(results, second)
    trial = trial_of(results, "mlp")
    assert labels(results, trial) == ["failed:hardware", "pass"]
    (bad,) = {record.host for record in rank_records(attempt_dirs(results, trial)[0]).values() if record.rank == 0}
    assert bad not in {record.host for record in rank_records(attempt_dirs(results, trial)[1]).values()}
    assert read_batch(layout.batch_dir(results, second)).avoid == [bad]


def test_jobs_and_trials_at_once_are_as_many_as_asked_for(bed: Bed, results: Path) -> None:
    more = {"cluster": {"max_jobs": 1, "trials_per_job": 2, "parallel_trials": 2, "gpus_per_node": 1}, "world_size": 2}
    names = ("core_attn", "mlp", "moe", "moe_act")
    submitted = submit(results, *names, fake={name: {"seconds": 0.2} for name in names}, **more)
    wait_over(results, *(batch.batch for batch in submitted.batches))
    runs = {name: attempt_dirs(results, trial_of(results, name, **more)) for name in names}
    assert {name: labels(results, trial_of(results, name, **more)) for name in names} == {
        name: ["pass"] for name in names
    }
    ranks = {name: list(rank_records(folder).values()) for name, (folder,) in runs.items()}
    spans = {
        name: (min(one.started_at for one in found), max(one.ended_at or 0.0 for one in found))
        for name, found in ranks.items()
    }
    for one, other in (names[:2], names[2:]):
        assert max(spans[one][0], spans[other][0]) < min(spans[one][1], spans[other][1]), "side by side"
        assert not {record.host for record in ranks[one]} & {record.host for record in ranks[other]}
    assert min(spans[name][0] for name in names[2:]) > max(spans[name][1] for name in names[:2]), "one job at a time"


def test_a_job_that_slurm_forgot_is_open_again(bed: Bed, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from orchestrator.dispatch.slurm.record import read_submission, write_submission

    submitted = submit(results, "control")
    batch = submitted.batches[0].batch
    wait_over(results, batch)
    folder = layout.batch_dir(results, batch)
    submission = read_submission(folder)
    assert submission is not None
    # As after a reset of the accounting database: the number is unknown, or another job's.
    write_submission(folder, replace(submission, state="submitted", job_id="1", at=time.time() - 3600))
    wait_over(results, batch, seconds=10)
    assert state_of(results, batch) == "vanished"
