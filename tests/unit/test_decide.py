"""The outcome of our own trials, from what their ranks left."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.outcome import Evidence, Outcome, SchedulerRow, decide
from orchestrator.outcome.catalogue import RULES
from orchestrator.outcome.catalogue.records import RECORD_RULES
from orchestrator.outcome.frame_places import PLACES
from orchestrator.outcome.frame_rules import CONTAINERS, OUTRANKS_ALL
from orchestrator.records.rank import ExceptionRecord, Frame, IterationRecord, LastBeacon, RankRecord
from orchestrator.records.spec import AttemptRecord
from orchestrator.vocabulary import Cause, Stage

OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB "
    "is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the allocated memory "
    "72.90 GiB is allocated by PyTorch, and 900.00 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)

KNOWN_RULES = {rule.id for rule in (*RULES, *RECORD_RULES, *OUTRANKS_ALL, *CONTAINERS, *PLACES)}


def passing_rank(rank: int, world_size: int = 2) -> RankRecord:
    return RankRecord(
        trial="t",
        attempt="001",
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        host="node01",
        started_at=0.0,
        ended_at=100.0,
        ended="exit",
        exit_code=0,
        beacon=LastBeacon(Stage.TEARDOWN, 20, 0, 99.0),
        measured=True,
        iterations=[IterationRecord(number, 10.0, loss=5.0) for number in range(1, 21)],
        optimizer_state=True,
    )


def ended_at(record: RankRecord, iteration: int, stage: Stage, at: float, **changes: object) -> RankRecord:
    """The record of a rank that ended in an iteration, the ones before it complete."""
    return replace(
        record,
        ended_at=at,
        measured=False,
        iterations=record.iterations[: iteration - 1] if iteration else [],
        optimizer_state=iteration > 1,
        beacon=LastBeacon(stage, iteration, 0, at),
        **changes,
    )


def raised(record: RankRecord, kind: str, message: str, stage: Stage, iteration: int, at: float) -> RankRecord:
    exception = ExceptionRecord(kind, message, stage=stage, iteration=iteration, at=at)
    return ended_at(record, iteration, stage, at, ended="exit", exit_code=1, exception=exception)


def terminated(record: RankRecord, iteration: int = 3, at: float = 60.0) -> RankRecord:
    return ended_at(record, iteration, Stage.BACKWARD, at, ended="terminated", exit_code=143)


def attempt(**changes: object) -> AttemptRecord:
    record = AttemptRecord("t", "001", "b", "s", "name", "trial", "mcore_cpu", 2, 0.0, "local", ended_at=101.0)
    return replace(record, **changes)


def decided(*ranks: RankRecord, scheduler: tuple[SchedulerRow, ...] = (), **changes: object) -> Outcome:
    evidence = Evidence(2, 20, (11, 20), {record.rank: record for record in ranks}, attempt(**changes), scheduler)
    outcome = decide(evidence)
    assert outcome.rules
    assert set(outcome.rules) <= KNOWN_RULES
    return outcome


def test_a_measured_trial_with_finite_losses_and_optimizer_state_passes() -> None:
    outcome = decided(passing_rank(0), passing_rank(1))
    assert (outcome.label, outcome.cause, outcome.iteration) == ("pass", Cause.NONE, 20)


@pytest.mark.parametrize(
    ("spoilt", "label"),
    [
        ({"measured": False}, "failed:unknown"),
        ({"optimizer_state": False}, "failed:unknown"),
        ({"optimizer_state": None}, "failed:unknown"),
        ({"iterations": passing_rank(0).iterations[:19]}, "failed:unknown"),
        ({"iterations": passing_rank(0).iterations[1:]}, "failed:unknown"),
    ],
)
def test_nothing_less_than_everything_is_a_pass(spoilt: dict[str, object], label: str) -> None:
    assert decided(replace(passing_rank(0), **spoilt), passing_rank(1)).label == label


def test_a_rank_without_a_record_is_no_pass() -> None:
    outcome = decided(passing_rank(0))
    assert (outcome.label, outcome.rules) == ("failed:unknown", ("pass.record-missing",))


def test_losses_on_the_last_pipeline_stage_are_enough_and_none_at_all_are_not() -> None:
    silent = replace(passing_rank(0), iterations=[replace(row, loss=None) for row in passing_rank(0).iterations])
    assert decided(silent, passing_rank(1)).label == "pass"
    assert decided(silent, replace(silent, rank=1)).rules == ("pass.no-loss",)


@pytest.mark.parametrize(
    ("changes", "label", "stage"),
    [
        ({"loss": math.nan}, "failed:non_finite", Stage.FORWARD),
        ({"loss": math.inf}, "failed:non_finite", Stage.FORWARD),
        ({"nan": True}, "failed:non_finite", Stage.FORWARD),
        ({"skipped": True}, "failed:skipped_steps", Stage.OPTIMIZER_STEP),
    ],
)
def test_a_bad_iteration_spoils_a_run_that_ended_well(changes: dict[str, object], label: str, stage: Stage) -> None:
    rows = passing_rank(0).iterations
    rows = [*rows[:6], replace(rows[6], **changes), *rows[7:]]
    outcome = decided(passing_rank(0), replace(passing_rank(1), iterations=rows))
    assert (outcome.label, outcome.stage, outcome.rank, outcome.iteration) == (label, stage, 1, 6)


def test_a_norm_that_is_spoilt_for_all_ranks_is_put_to_none_of_them() -> None:
    rows = passing_rank(0).iterations
    spoilt = [*rows[:6], replace(rows[6], nan=True, grad_norm=math.nan), *rows[7:]]
    outcome = decided(*(replace(passing_rank(rank), iterations=spoilt) for rank in (0, 1)))
    assert (outcome.label, outcome.rank, outcome.iteration) == ("failed:non_finite", None, 6)
    assert outcome.lines == ("2 ranks: the gradient norm of iteration 7 is nan",)


@pytest.mark.parametrize(
    ("stage", "label"),
    [
        (Stage.MODEL_BUILD, "OOM-setup"),
        (Stage.FORWARD, "OOM-fwd"),
        (Stage.REPLAY, "OOM-bwd"),
        (Stage.OPTIMIZER_INIT, "OOM-optimizer"),
        (Stage.CHECKPOINT_SAVE, "OOM-checkpoint"),
    ],
)
def test_out_of_memory_gets_the_label_of_the_seam(stage: Stage, label: str) -> None:
    outcome = decided(
        raised(passing_rank(0), "torch.OutOfMemoryError", OOM, stage, 3, 50.0), terminated(passing_rank(1))
    )
    assert (outcome.label, outcome.cause, outcome.rank, outcome.iteration) == (label, Cause.DEVICE_OOM, 0, 2)
    assert "seam.stage" in outcome.rules
    assert outcome.memory is not None
    assert outcome.memory.requested == 2 * 2**30


def test_a_peer_that_lost_its_connection_first_is_still_a_consequence() -> None:
    lost = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3456"
    outcome = decided(
        raised(passing_rank(0), "RuntimeError", lost, Stage.BACKWARD, 3, 49.9),
        raised(passing_rank(1), "torch.OutOfMemoryError", OOM, Stage.FORWARD, 3, 50.0),
    )
    assert (outcome.label, outcome.rank, outcome.also_ranks) == ("OOM-fwd", 1, ())
    assert "Connection closed" in outcome.notes[0]


def test_the_earliest_cause_is_the_first_rank_and_ties_within_the_skew_are_named() -> None:
    first = raised(passing_rank(1), "torch.OutOfMemoryError", OOM, Stage.BACKWARD, 3, 50.0)
    later = raised(passing_rank(0), "torch.OutOfMemoryError", OOM, Stage.FORWARD, 3, 50.3)
    assert (decided(first, later).rank, decided(first, later).also_ranks) == (1, ())
    elsewhere = replace(later, host="node02")
    assert (decided(first, elsewhere).rank, decided(first, elsewhere).also_ranks) == (1, (0,))


def test_a_failure_after_the_measurement_is_a_note() -> None:
    late = replace(passing_rank(1), ended="signal", exit_code=None, signal=11)
    outcome = decided(passing_rank(0), late)
    assert outcome.label == "pass"
    assert "SIGSEGV" in outcome.notes[0]


def test_sigkill_alone_is_a_crash_and_names_the_beacons_stage() -> None:
    killed = ended_at(passing_rank(0), 4, Stage.BACKWARD, 50.0, ended="signal", exit_code=None, signal=9)
    outcome = decided(killed, terminated(passing_rank(1)))
    assert (outcome.label, outcome.stage, outcome.rank, outcome.iteration) == ("failed:crash", Stage.BACKWARD, 0, 3)


def test_sigkill_is_host_memory_when_the_ranks_cgroup_counted_a_kill() -> None:
    killed = ended_at(passing_rank(0), 4, Stage.FORWARD, 50.0, ended="signal", exit_code=None, signal=9)
    found = decided(replace(killed, host_oom_kills=1), terminated(passing_rank(1)))
    assert (found.cause, found.stage, found.rank) == (Cause.HOST_OOM, Stage.FORWARD, 0)
    assert decided(replace(killed, host_oom_kills=0), terminated(passing_rank(1))).cause is Cause.CRASH


def test_sigkill_by_the_oom_killer_is_host_memory_when_slurm_or_the_log_says_so() -> None:
    killed = ended_at(passing_rank(0), 4, Stage.BACKWARD, 50.0, ended="signal", exit_code=None, signal=9)
    rows = (SchedulerRow("12.3", "OUT_OF_MEMORY"),)
    assert decided(killed, terminated(passing_rank(1)), scheduler=rows).label == "failed:host_oom"
    told = replace(killed, stderr_tail="slurmstepd: error: Detected 1 oom_kill event in StepId=12.3.")
    assert decided(told, terminated(passing_rank(1))).label == "failed:host_oom"


def test_a_hang_after_an_exception_is_that_exception() -> None:
    record = raised(passing_rank(0), "torch.OutOfMemoryError", OOM, Stage.FORWARD, 2, 50.0)
    outcome = decided(
        replace(record, ended="stall", ended_at=350.0),
        ended_at(passing_rank(1), 2, Stage.GRAD_SYNC, 340.0, ended="stall"),
    )
    assert (outcome.label, outcome.rank) == ("OOM-fwd", 0)


def test_all_told_to_end_and_none_says_why_is_a_cascade_unless_cancelled() -> None:
    ranks = terminated(passing_rank(0)), terminated(passing_rank(1))
    assert decided(*ranks).label == "failed:cascade"
    assert decided(*ranks, cancelled=True).label == "failed:cancelled"
    assert decided(*ranks, scheduler=(SchedulerRow("12", "PREEMPTED"),)).label == "failed:preempted"
    assert decided(*ranks, scheduler=(SchedulerRow("12", "CANCELLED by 1000"),)).label == "failed:cancelled"


def test_a_trial_cut_short_by_its_job_has_no_answer_yet() -> None:
    ranks = terminated(passing_rank(0)), terminated(passing_rank(1))
    assert decided(*ranks, cut_short="job_time_limit").label is None
    assert decided(*ranks, scheduler=(SchedulerRow("12", "TIMEOUT"),)).label is None
    assert decided(passing_rank(0), ended_at=None).label is None


def test_the_trials_own_time_limit_is_a_cause() -> None:
    ranks = [ended_at(passing_rank(rank), 4, Stage.FORWARD, 60.0, ended="time_limit") for rank in (0, 1)]
    assert decided(*ranks).label == "failed:time_limit"


def test_out_of_memory_before_the_job_ran_out_of_time_is_out_of_memory() -> None:
    failed = raised(passing_rank(0), "torch.OutOfMemoryError", OOM, Stage.FORWARD, 3, 50.0)
    outcome = decided(failed, terminated(passing_rank(1)), scheduler=(SchedulerRow("12", "TIMEOUT"),))
    assert outcome.label == "OOM-fwd"


@pytest.mark.parametrize(
    ("kind", "message", "stage", "label"),
    [
        ("ModuleNotFoundError", "No module named 'transformer_engine'", Stage.STARTUP, "failed:import_error"),
        ("AssertionError", "num_layers must be even", Stage.VALIDATE, "failed:invalid_config"),
        ("ValueError", "odd", Stage.MODEL_BUILD, "failed:invalid_config"),
        ("ValueError", "odd", Stage.FORWARD, "failed:unknown"),
        ("OSError", "[Errno 28] No space left on device", Stage.CHECKPOINT_SAVE, "failed:storage"),
        (
            "RuntimeError",
            "CUDA error: an illegal memory access was encountered",
            Stage.FORWARD,
            "failed:illegal_access",
        ),
        ("RuntimeError", "CUDA error: out of memory", Stage.DISTRIBUTED_INIT, "failed:shared_gpu"),
    ],
)
def test_exceptions_are_told_apart(kind: str, message: str, stage: Stage, label: str) -> None:
    assert decided(raised(passing_rank(0), kind, message, stage, 1, 5.0), terminated(passing_rank(1))).label == label


def test_the_nccl_calloc_behind_a_backend_error_is_a_full_device() -> None:
    message = (
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error, NCCL 2.28\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 24 bytes"
    )
    record = raised(passing_rank(0), "torch.distributed.DistBackendError", message, Stage.BETWEEN_STEPS, 2, 5.0)
    outcome = decided(record, terminated(passing_rank(1)))
    assert (outcome.label, outcome.cause) == ("OOM-unknown", Cause.NCCL_OOM)


def test_without_a_seam_the_frames_say_where_and_without_frames_the_beacon() -> None:
    record = raised(passing_rank(0), "torch.OutOfMemoryError", OOM, Stage.BACKWARD, 3, 5.0)
    assert record.exception is not None
    frames = [Frame("megatron/core/optimizer/distrib_optimizer.py", 1, "step_with_ready_grads")]
    framed = replace(record, exception=replace(record.exception, stage=None, frames=frames))
    assert decided(framed, terminated(passing_rank(1))).label == "OOM-optimizer"
    bare = replace(record, exception=replace(record.exception, stage=None))
    assert decided(bare, terminated(passing_rank(1))).label == "OOM-bwd"


def test_a_step_that_could_not_start_is_a_launch_failure() -> None:
    assert decided(launch_error="slurmstepd: error: pyxis: child 1 failed with error code: 1").label == "failed:launch"
    assert (
        decided(launch_error="sbatch: error: Batch job submission failed: Invalid account").label == "failed:submission"
    )
    assert decided(launch_error="something new").label == "failed:launch"


def test_a_rank_of_which_only_the_exit_status_is_left_counts() -> None:
    outcome = decided(terminated(passing_rank(0)), exit_codes={"0": 143, "1": -9})
    assert (outcome.label, outcome.rank) == ("failed:crash", 1)


@given(st.permutations([0, 1, 2, 3]), st.integers(0, 3))
def test_the_first_rank_does_not_depend_on_the_order_of_records(order: list[int], culprit: int) -> None:
    ranks = {
        rank: raised(passing_rank(rank, 4), "torch.OutOfMemoryError", OOM, Stage.FORWARD, 3, 50.0)
        if rank == culprit
        else terminated(passing_rank(rank, 4))
        for rank in order
    }
    outcome = decide(Evidence(4, 20, (11, 20), ranks, attempt()))
    assert (outcome.label, outcome.rank) == ("OOM-fwd", culprit)


@given(st.sets(st.integers(0, 1), max_size=1), st.integers(1, 20), st.sampled_from(list(Stage)))
def test_an_attempt_that_lost_anything_never_passes(lost: set[int], iteration: int, stage: Stage) -> None:
    ranks = [passing_rank(rank) for rank in (0, 1) if rank not in lost]
    if not lost:
        ranks[0] = ended_at(ranks[0], iteration, stage, 50.0, ended="signal", signal=9)
    assert decided(*ranks).label != "pass"


@pytest.mark.parametrize("row", [{"state": "CANCELLED by 0", "step_id": "7.0"}, {}])
def test_a_step_that_slurm_killed_over_its_memory_is_a_host_oom_whatever_its_row_says(row: dict[str, str]) -> None:
    said = "slurmstepd-node1: error: StepId=7.0 exceeded memory limit (957460480 > 629145600), being killed"
    gone = [ended_at(passing_rank(rank), 3, Stage.FORWARD, 60.0, ended="lost", exit_code=None) for rank in (0, 1)]
    scheduler = {"job_id": "7", "reason": said, **row}
    assert decide(Evidence(2, 20, (11, 20), dict(enumerate(gone)), attempt(scheduler=scheduler))).label == (
        "failed:host_oom"
    )
