"""Reading what Slurm says, and what follows from it for a submitted job."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.dispatch.liveness import DriverState
from orchestrator.dispatch.slurm.accounting import Heard, JobRows, Row, newest, parse_sacct, parse_squeue
from orchestrator.dispatch.slurm.held import ran_in
from orchestrator.dispatch.slurm.launcher import step_environment
from orchestrator.dispatch.slurm.printed import end_of_job, exit_codes_of, memory_word
from orchestrator.dispatch.slurm.record import Submission
from orchestrator.dispatch.slurm.settle import Fate, fate_of_job, was_killed
from orchestrator.dispatch.slurm.submission import refusal_of
from orchestrator.dispatch.submit import live_batches, write_batch
from orchestrator.records.spec import Batch

SACCT = """\
7|orchestrator-b|NODE_FAIL|0:0|node[1-2]|None|100|150
7|orchestrator-b|COMPLETED|0:0|node[3-4]|None|300|400
7.batch|batch|COMPLETED|0:0|node3||300|400
7.0|t-001|OUT_OF_MEMORY|0:125|node[3-4]||310|350
8|orchestrator-c|CANCELLED by 1000|0:0|None assigned|None|Unknown|500
garbage
"""


def test_a_requeued_jobs_incarnations_and_steps_are_kept_apart() -> None:
    jobs = parse_sacct(SACCT)
    assert set(jobs) == {"7", "8"}
    assert (jobs["7"].job.word, [row.word for row in jobs["7"].earlier]) == ("COMPLETED", ["NODE_FAIL"])
    assert [(row.step, row.word) for row in jobs["7"].steps] == [("batch", "COMPLETED"), ("0", "OUT_OF_MEMORY")]
    assert (jobs["8"].job.word, jobs["8"].job.nodes, jobs["8"].job.start) == ("CANCELLED", None, None)


@pytest.mark.parametrize(
    ("accounts", "queue", "live"),
    [
        ("NODE_FAIL", "PENDING", True),
        ("NODE_FAIL", "COMPLETING", True),
        ("PREEMPTED", "RUNNING", True),
        ("COMPLETED", "COMPLETING", False),
        ("NODE_FAIL", "NODE_FAIL", False),
        ("RUNNING", "COMPLETED", True),
    ],
)
def test_a_job_that_was_put_back_is_not_over_because_accounts_lag(accounts: str, queue: str, live: bool) -> None:
    said = newest({"7": JobRows(Row("7", None, "b", accounts))}, {"7": JobRows(Row("7", None, "b", queue))})["7"]
    assert said.is_live is live
    if live and accounts != "RUNNING":
        assert [row.word for row in said.earlier] == [accounts]


def test_the_queue_is_read_where_nothing_keeps_accounts() -> None:
    jobs = parse_squeue("9|orchestrator-d|RUNNING|None|node[1-2]\n")
    assert jobs["9"].is_live
    assert jobs["9"].job.nodes == "node[1-2]"


def heard(state: str, name: str = "orchestrator-b", earlier: str | None = None) -> Heard:
    rows = (Row("7", None, name, earlier),) if earlier else ()
    return Heard({"7": JobRows(Row("7", None, name, state), rows)})


SUBMISSION = Submission("b", "submitted", "token", "orchestrator-b", at=1000.0, job_id="7")


@pytest.mark.parametrize(
    ("said", "fate"),
    [
        (heard("RUNNING"), Fate.LIVE),
        (heard("SUSPENDED"), Fate.LIVE),
        (heard("COMPLETING"), Fate.LIVE),
        (heard("PENDING", earlier="PREEMPTED"), Fate.QUEUED_AGAIN),
        (heard("TIMEOUT"), Fate.OVER),
        (heard("CANCELLED by 0"), Fate.OVER),
        (heard("NODE_FAIL"), Fate.OVER),
        (heard("COMPLETED", name="somebody-else"), Fate.VANISHED),
        (Heard(), Fate.VANISHED),
        (Heard(complete=False), Fate.OVER),
    ],
)
def test_what_a_jobs_state_means_for_its_batch(said: Heard, fate: Fate) -> None:
    assert fate_of_job(SUBMISSION, said, now=2000.0)[0] is fate


@pytest.mark.parametrize(
    ("exit_code", "killed"), [("0:9", True), ("0:15", True), ("1:0", False), ("0:53", False), (None, False)]
)
def test_a_job_killed_before_its_driver_spoke_is_no_failed_launch(exit_code: str | None, killed: bool) -> None:
    """0:53 is Slurm's word for a folder that it cannot write to."""
    assert was_killed(Row("7", None, "orchestrator-b", "FAILED", exit_code)) is killed


def test_a_job_submitted_just_now_may_be_unknown_for_a_while() -> None:
    assert fate_of_job(SUBMISSION, Heard(), now=1010.0)[0] is Fate.LIVE


def test_the_row_before_a_requeue_explains_what_it_cut_short() -> None:
    fate, row = fate_of_job(SUBMISSION, heard("PENDING", earlier="PREEMPTED"), now=2000.0)
    assert fate is Fate.QUEUED_AGAIN
    assert row is not None
    assert row.word == "PREEMPTED"


def test_srun_says_how_tasks_ended() -> None:
    text = (
        "srun: error: node1: task 0: Exited with exit code 11\n"
        "srun: error: node2: tasks 2-3: Killed\n"
        "srun: error: node3: tasks 4,6: Segmentation fault (core dumped)\n"
        "srun: error: node4: task 9: Out Of Memory\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=1.0\n"
    )
    assert exit_codes_of(text) == {0: 11, 2: -9, 3: -9, 4: -11, 6: -11, 9: -9}


def test_srun_says_that_the_job_is_over() -> None:
    limit = "slurmstepd-node1: error: *** STEP 5.0 ON node1 CANCELLED AT 2026-11-29T20:15:29 DUE TO TIME LIMIT ***\n"
    assert end_of_job(limit) == "job_time_limit"
    gone = "srun: error: Unable to create step for job 5: Job/step already completing or completed\n"
    assert end_of_job(gone) == end_of_job("srun: error: Slurm job 5 has expired\n") == "driver_signal"
    assert end_of_job("slurmstepd: error: *** STEP 5.0 ON node1 CANCELLED AT 2026-11-29T20:15:29 ***\n") is None
    assert (
        end_of_job("srun: error: Unable to create step for job 5: More processors requested than permitted\n") is None
    )


def test_slurmstepd_says_that_a_step_was_over_its_memory() -> None:
    by_slurm = "slurmstepd-node1: error: StepId=5.0 exceeded memory limit (957460480 > 629145600), being killed"
    by_kernel = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been OOM Killed."
    )
    assert memory_word(f"srun: something\n{by_slurm}\n") == by_slurm
    assert memory_word(by_kernel) == by_kernel
    assert memory_word("srun: error: node1: task 0: Killed\nthe loader exceeded memory limit\n") is None


def test_a_step_inherits_neither_another_rank_nor_the_jobs_wishes() -> None:
    inherited = {"RANK": "3", "SLURM_MEM_PER_NODE": "1", "SLURM_JOB_ID": "7", "HF_TOKEN": "x"}
    assert step_environment(inherited, {"A": "1"}) == {"SLURM_JOB_ID": "7", "HF_TOKEN": "x", "A": "1"}


def test_a_refusal_is_sbatchs_own_words() -> None:
    text = "command '['sbatch', '/x/.submission_file_1.sh']'\nsbatch: error: invalid partition specified: x\nTraceback"
    assert refusal_of(text) == "sbatch: error: invalid partition specified: x"


def test_a_damaged_submission_is_named_and_its_job_is_not_run_beside_another(tmp_path: Path) -> None:
    folder = write_batch(Batch("b", "study", 0.0, str(tmp_path), [], {"kind": "slurm"}))
    (folder / "submission.json").write_text("{")
    with pytest.raises(EnvironmentFailure, match=r"submission\.json.*squeue --me --name orchestrator-b"):
        live_batches(tmp_path)


@pytest.mark.parametrize(
    ("start", "end", "ours"), [(90.0, 500.0, True), (None, None, True), (200.0, 500.0, False), (10.0, 50.0, False)]
)
def test_a_job_that_had_the_number_before_or_after_is_not_the_one_a_driver_ran_in(
    start: float | None, end: float | None, ours: bool
) -> None:
    state = DriverState("b", 5, 1, "node1", started_at=100.0, heartbeat=110.0, state="running", done=0, total=1)
    assert ran_in(JobRows(Row("7", None, "mine", "TIMEOUT", start=start, end=end)), state) is ours
