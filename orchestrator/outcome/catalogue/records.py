"""What is looked for in records rather than in lines: the rules of `decide` by id, with an example each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordRule:
    """One thing that records of ranks, the driver or Slurm can show. `orchestrator.outcome.decide` and its neighbours
    apply it."""

    id: str
    looks_for: str
    example: str


RECORD_RULES = (
    RecordRule("pass.measured", "every rank measured the whole window", "2 of 2 ranks completed iterations 1 to 20"),
    RecordRule(
        "pass.loss-not-finite",
        "a loss or gradient norm that is NaN or infinite",
        "rank 1: the loss of iteration 7 is nan",
    ),
    RecordRule("pass.iteration-skipped", "a step that was skipped", "rank 1: the optimizer skipped iteration 7"),
    RecordRule("pass.record-missing", "ranks without a record", "1 of 2 ranks left no record: 1"),
    RecordRule("pass.iteration-missing", "an iteration without a row", "iteration 20 of the 20 was not recorded"),
    RecordRule("pass.not-measured", "a window that did not end", "rank 0: the steady window did not end"),
    RecordRule("pass.no-optimizer-state", "no optimizer state at its end", "rank 0: optimizer state did not exist"),
    RecordRule("pass.no-loss", "an iteration without a loss on any rank", "no rank recorded a loss for iteration 3"),
    RecordRule("seam.stage", "the seam that an exception passed", "torch.OutOfMemoryError raised in replay"),
    RecordRule("beacon.stage", "where the beacon was last", "backward, iteration 4, microbatch 1"),
    RecordRule("exception.unknown", "an exception that no rule knows", "RuntimeError: shapes do not match"),
    RecordRule("rank.stalled", "no progress past stall_seconds", "rank 1 made no progress in forward"),
    RecordRule(
        "hang.not-waiting",
        "what each rank that stands still was doing",
        "rank 1 is busy with something of its own while rank 0 waits in all_reduce",
    ),
    RecordRule("hang.alone", "no other rank that could be waited for", "no other rank was left than rank 0"),
    RecordRule(
        "hang.undecided", "stacks that do not say who waits for whom", "rank 0 and rank 1 both wait for another"
    ),
    RecordRule("rank.time-limit", "the trial's own time limit", "rank 0 reached the trial's time limit"),
    RecordRule("rank.terminated", "a supervisor that was told to end", "rank 1 was told to end"),
    RecordRule("rank.signal", "a trainer that a signal ended", "rank 0 ended with signal 9 (SIGKILL)"),
    RecordRule("rank.host-oom-kills", "kills that the rank's cgroup counted", "its cgroup counted 1 kill for memory"),
    RecordRule("rank.lost", "a supervisor that is gone", "rank 0 and its supervisor ended without a word"),
    RecordRule("rank.exit-code", "an exit status and nothing else", "rank 0 ended with code 3 and did not say why"),
    RecordRule(
        "launcher.signal", "a signal that only the launcher saw", "rank 1 left no record and ended with signal 9"
    ),
    RecordRule(
        "launcher.exit-code", "a status that only the launcher saw", "rank 1 left no record and ended with code 1"
    ),
    RecordRule("attempt.launch-error", "ranks that could not be started", "pyxis: child 1 failed with error code: 1"),
    RecordRule("attempt.cancelled", "a person's cancel", "cancel demo"),
    RecordRule("attempt.job-time-limit", "a job that ended first", "its job reached its time limit"),
    RecordRule("attempt.driver-signal", "a driver that was told to end", "its driver was told to end"),
    RecordRule("attempt.running", "an attempt that has not ended", "it has not ended"),
    RecordRule("ranks.ended-by-others", "all told to end, none says why", "rank 0 was told to end"),
    RecordRule("slurm.node_fail", "Slurm's word for a lost node", "Slurm says 12.3 ended NODE_FAIL"),
    RecordRule("slurm.boot_fail", "Slurm's word for a node that did not boot", "Slurm says 12 ended BOOT_FAIL"),
    RecordRule("slurm.preempted", "Slurm's word for preemption", "Slurm says 12 ended PREEMPTED"),
    RecordRule("slurm.out_of_memory", "Slurm's word for the OOM killer", "Slurm says 12.3 ended OUT_OF_MEMORY"),
    RecordRule("slurm.cancelled", "Slurm's word for scancel", "Slurm says 12 ended CANCELLED by 1000"),
    RecordRule("slurm.revoked", "Slurm's word for a job of another cluster", "Slurm says 12 ended REVOKED"),
    RecordRule(
        "device.full-before-start", "a full device before ours held any", "CUDA error: out of memory in barrier"
    ),
    RecordRule("device.arithmetic-shared_gpu", "others hold what is missing", "other processes 90.260 GB"),
    RecordRule("device.arithmetic-fragmentation", "unallocated covers the request", "2.29 GiB of 9.10 GiB unallocated"),
    RecordRule("host.pinned-memory", "a CUDA error where memory is pinned", "x.cpu().pin_memory(): invalid argument"),
    RecordRule("software.refused", "an assertion while configuring or building", "AssertionError in __post_init__"),
)
