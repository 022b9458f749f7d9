"""Which rank hangs, by what the ranks that stand still were doing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.outcome import Evidence, Outcome, decide
from orchestrator.outcome.catalogue.records import RECORD_RULES
from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.outcome.stacks import WAIT_RULES, Doing, WaitRule, doing
from orchestrator.records.rank import Device, ExceptionRecord, LastBeacon, RankRecord
from orchestrator.records.stacks import asleep_line, is_whole
from orchestrator.vocabulary import Stage

STANDARD = "/usr/lib/python3.12"
SITE = "/usr/lib/python3.12/site-packages"
MAIN = [("runpy.py", "_run_code"), ("runpy.py", "_run_module_as_main")]


def stacks(*threads: list[tuple[str, str]], current: int = -1) -> str:
    """What faulthandler prints of threads, each with its frames, innermost first."""
    printed = []
    for number, frames in enumerate(threads):
        head = "Current thread" if number == current % len(threads) else "Thread"
        lines = [f'  File "{file}", line 12 in {function}' for file, function in frames]
        printed.append("\n".join([f"{head} 0x00007ff4551536c0 (most recent call first):", *lines]))
    return "\n\n".join(printed) + "\n"


def trainer(*frames: tuple[str, str]) -> str:
    pool = [(f"{STANDARD}/threading.py", "wait"), (f"{STANDARD}/threading.py", "_bootstrap")]
    return stacks(pool, [*frames, ("/opt/orchestrator/trial/child.py", "main"), *MAIN])


REDUCES = trainer((f"{SITE}/torch/distributed/distributed_c10d.py", "all_reduce"))
RECEIVES = trainer((f"{SITE}/megatron/core/pipeline_parallel/p2p_communication.py", "_communicate"))
SLEEPS = trainer(("/opt/orchestrator/trial/mcore_cpu/faults.py", "_commit"))
READS = trainer((f"{STANDARD}/multiprocessing/connection.py", "poll"), ("/job/data.py", "next"))
MULTIPLIES = trainer((f"{SITE}/torch/nn/functional.py", "linear"))


def halted(
    rank: int, printed: str, at: float, stage: Stage = Stage.FORWARD, ended: str = "stall", device: str | None = "cpu"
) -> RankRecord:
    return RankRecord(
        trial="t",
        attempt="001",
        rank=rank,
        world_size=3,
        local_rank=rank,
        host="node01",
        started_at=0.0,
        ended_at=400.0,
        ended=ended,
        beacon=LastBeacon(stage, 5, 0, at),
        device=None if device is None else Device(device),
        stacks=printed,
    )


def outcome(*ranks: RankRecord) -> Outcome:
    found = decide(Evidence(len(ranks), 20, (11, 20), {record.rank: record for record in ranks}, over=True))
    assert found.label == "failed:hang"
    assert set(found.rules) <= {rule.id for rule in RECORD_RULES}
    return found


def test_the_rank_that_works_hangs_and_not_the_one_that_has_waited_for_longer() -> None:
    found = outcome(halted(0, RECEIVES, 90.0), halted(1, SLEEPS, 95.0, Stage.BACKWARD), halted(2, REDUCES, 91.0))
    assert (found.rank, found.also_ranks, found.stage, found.iteration) == (1, (), Stage.BACKWARD, 4)
    assert found.rules == ("rank.stalled", "hang.not-waiting")
    assert found.lines[0] == "rank 1 (backward) is busy with something of its own, in _commit of mcore_cpu/faults.py"


def test_a_rank_that_was_ended_with_the_one_that_waited_can_be_the_one() -> None:
    found = outcome(halted(0, RECEIVES, 90.0), halted(1, SLEEPS, 95.0, Stage.REPLAY, "terminated"))
    assert (found.rank, found.stage) == (1, Stage.REPLAY)


def test_of_ranks_that_work_the_first_to_stop_is_named_with_those_that_stopped_with_it() -> None:
    found = outcome(halted(0, SLEEPS, 95.0), halted(1, SLEEPS, 90.0), halted(2, SLEEPS, 90.04))
    assert (found.rank, found.also_ranks) == (1, (2,))


@pytest.mark.parametrize("printed", [REDUCES, "", "Fatal Python error: Aborted"])
def test_where_nothing_tells_the_ranks_apart_none_is_named(printed: str) -> None:
    ranks = halted(0, printed, 90.0), halted(1, printed, 95.0), halted(2, REDUCES, 85.0)
    found = outcome(*ranks)
    assert (found.rank, found.also_ranks, found.stage) == (None, (), Stage.FORWARD)
    assert found.rules == ("rank.stalled", "hang.undecided")
    assert outcome(*ranks[:2], replace(ranks[2], beacon=LastBeacon(Stage.BACKWARD, 5, 0, 85.0))).stage is Stage.UNKNOWN


def test_a_rank_of_a_gpu_is_not_blamed_for_what_its_device_may_wait_for() -> None:
    ranks = [halted(rank, MULTIPLIES, 90.0 + rank, device="cuda") for rank in range(3)]
    assert outcome(*ranks).rank is None
    assert outcome(*ranks[:2], halted(2, READS, 99.0, Stage.BETWEEN_STEPS, device="cuda")).rank == 2


def recorded(rank: int) -> str:
    """What rank `rank` of two H200s printed while rank 1 slept in its forward (Megatron Bridge 0.3.1, TP=2)."""
    return (Path(__file__).parents[1] / f"data/h200_sleeping_rank_1.rank-{rank}.stacks").read_text()


def test_a_rank_that_sleeps_while_the_other_waits_for_its_gpu_is_named() -> None:
    waits, sleeps = recorded(0), asleep_line("clock_nanosleep") + recorded(1)
    found = outcome(halted(0, waits, 90.0, device="cuda"), halted(1, sleeps, 90.0, device="cuda"))
    assert (found.rank, found.also_ranks, found.rules) == (1, (), ("rank.stalled", "hang.not-waiting"))
    assert found.lines == (
        "rank 1 (forward) is busy with something of its own, in sleep_on_rank_1 of benchmarks/rank_faults.py",
        "rank 0 (forward) waits for its device, in synchronize of cuda/streams.py",
    )


def test_without_the_kernels_word_neither_is() -> None:
    found = outcome(*(halted(rank, recorded(rank), 90.0, device="cuda") for rank in (0, 1)))
    assert (found.rank, found.rules) == (None, ("rank.stalled", "hang.undecided"))


@given(st.integers(min_value=0, max_value=8000), st.sampled_from([0, 1]))
def test_stacks_that_were_cut_short_blame_nobody(length: int, rank: int) -> None:
    cut = recorded(rank)[:length]
    assert doing(cut, "cuda")[0] in (Doing.UNCLEAR, Doing.DEVICE)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("wait4", Doing.STUCK),
        ("pread64", Doing.STUCK),
        ("flock", Doing.LOCKED),
        ("futex", Doing.UNCLEAR),
        ("ioctl", Doing.UNCLEAR),
    ],
)
def test_the_kernel_tells_a_pause_from_a_wait_for_the_device(call: str, what: Doing) -> None:
    assert doing(asleep_line(call) + MULTIPLIES, "cuda")[0] is what
    assert doing(asleep_line(call) + RECEIVES, "cuda")[0] is Doing.WAITS


BUILDS = trainer((f"{STANDARD}/subprocess.py", "_try_wait"), ("/job/kernels.py", "build"))
ON_LOCKS = [
    asleep_line("flock") + trainer(("/job/data.py", "build_index")),
    trainer((f"{SITE}/torch/utils/file_baton.py", "wait")),
    trainer((f"{STANDARD}/contextlib.py", "__enter__"), (f"{SITE}/filelock/_api.py", "acquire")),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("waits", ON_LOCKS)
def test_a_rank_that_waits_for_a_lock_is_not_blamed_for_the_one_that_may_hold_it(waits: str, device: str) -> None:
    """Though it stopped long before."""
    reduces, locked = halted(0, REDUCES, 80.0, device=device), halted(1, waits, 81.0, device=device)
    assert outcome(reduces, locked, halted(2, BUILDS, 95.0, device=device)).rank == 2
    assert outcome(reduces, locked, halted(2, "", 95.0, device=device)).rank is None
    assert outcome(reduces, locked, halted(2, RECEIVES, 95.0, device=device)).rank == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rank_that_waits_for_a_thread_that_waits_for_another_rank_is_not_named(device: str) -> None:
    saver = [(f"{SITE}/torch/distributed/distributed_c10d.py", "gather"), (f"{STANDARD}/threading.py", "_bootstrap")]
    main = [
        (f"{STANDARD}/threading.py", "wait"),
        (f"{STANDARD}/concurrent/futures/_base.py", "result"),
        ("s.py", "save"),
    ]
    assert doing(stacks(saver, [*main, *MAIN]), device)[0] is Doing.WAITS
    assert doing(stacks(saver[1:], [*main, *MAIN]), device)[0] is Doing.STUCK


@given(st.sampled_from([REDUCES, RECEIVES]), st.integers(0, 20), st.sampled_from(["retrying", "", "  File"]))
def test_output_that_tears_the_stacks_of_a_rank_that_waits_does_not_blame_it(printed: str, at: int, torn: str) -> None:
    lines = printed.splitlines()
    for whole in (torn, torn + lines[at % len(lines)]):
        mixed = [*lines[: at % len(lines)], whole, *lines[at % len(lines) + 1 :]]
        assert doing("\n".join(mixed), "cpu")[0] in (Doing.WAITS, Doing.UNCLEAR)


@given(st.integers(0, 700))
def test_stacks_of_a_rank_that_waits_blame_nobody_however_short_they_were_cut(length: int) -> None:
    """Its innermost frame alone, one of Python's own, says nothing."""
    printed = trainer((f"{STANDARD}/threading.py", "wait"), (WAIT_RULES[0].example.file, "send"))
    assert doing(printed[:length], "cpu")[0] in (Doing.WAITS, Doing.UNCLEAR)


def test_of_a_trainer_with_too_many_threads_the_one_that_trains_is_printed_by_itself() -> None:
    pool = [(f"{STANDARD}/threading.py", "wait"), (f"{STANDARD}/threading.py", "_bootstrap")]
    hundred = stacks(*[pool] * 100).replace("Current thread", "Thread") + "...\n"
    alone = SLEEPS.rpartition("Current thread")[2].partition("\n")[2]
    assert doing(hundred, "cpu")[0] is Doing.UNCLEAR
    assert not is_whole(hundred.encode())
    asked_again = f"{hundred}Stack (most recent call first):\n{alone}"
    assert is_whole(asked_again.encode())
    assert doing(asked_again, "cpu")[0] is Doing.STUCK


def test_the_only_rank_that_did_not_end_by_itself_hangs_whatever_it_did() -> None:
    well = replace(halted(0, "", 99.0, Stage.TEARDOWN, "exit"), exit_code=0)
    assert outcome(well, halted(1, REDUCES, 90.0)).rank == 1
    assert outcome(halted(0, "", 90.0)).rank == 0


def test_a_lost_connection_after_a_hang_does_not_hide_who_hangs() -> None:
    lost = ExceptionRecord("RuntimeError", "Connection closed by peer [127.0.0.1]:4711", stage=Stage.BACKWARD, at=390.0)
    waited = replace(halted(0, "", 99.0, Stage.BACKWARD, "exit"), exit_code=1, exception=lost)
    found = outcome(waited, halted(1, RECEIVES, 90.0), halted(2, SLEEPS, 95.0, ended="terminated"))
    assert found.rank == 2


@pytest.mark.parametrize(
    ("printed", "device", "what"),
    [
        (REDUCES, "cpu", Doing.WAITS),
        (RECEIVES, "cuda", Doing.WAITS),
        (SLEEPS, "cpu", Doing.STUCK),
        (SLEEPS, None, Doing.STUCK),
        (SLEEPS, "cuda", Doing.UNCLEAR),
        (MULTIPLIES, "cpu", Doing.STUCK),
        (MULTIPLIES, "cuda", Doing.UNCLEAR),
        (READS, "cuda", Doing.STUCK),
        (trainer(("<frozen importlib._bootstrap_external>", "get_data")), "cuda", Doing.STUCK),
        # A lock that a collective takes is part of it.
        (trainer((f"{STANDARD}/threading.py", "wait"), (WAIT_RULES[0].example.file, "send")), "cpu", Doing.WAITS),
        ("", "cpu", Doing.UNCLEAR),
        (
            stacks([(f"{STANDARD}/threading.py", "wait"), (f"{STANDARD}/threading.py", "_bootstrap")]),
            "cpu",
            Doing.UNCLEAR,
        ),
    ],
)
def test_what_a_rank_was_doing_is_read_from_the_thread_that_trains(
    printed: str, device: str | None, what: Doing
) -> None:
    assert doing(printed, device)[0] is what


def test_backward_on_a_thread_of_its_own_is_where_the_trainer_is() -> None:
    main = [(f"{SITE}/torch/autograd/graph.py", "_engine_run_backward"), *MAIN]
    backward = [(f"{SITE}/torch/distributed/distributed_c10d.py", "all_to_all_single"), ("f.py", "apply")]
    assert doing(stacks(backward, main), "cuda")[0] is Doing.WAITS


def test_of_stacks_that_were_printed_twice_the_later_count() -> None:
    assert doing(SLEEPS + "\nsomething else\n" + REDUCES, "cpu")[0] is Doing.WAITS


@pytest.mark.parametrize("rule", WAIT_RULES, ids=lambda rule: rule.id)
def test_every_rule_knows_its_example(rule: WaitRule) -> None:
    frame = rule.example
    assert doing(trainer((f"{SITE}/{frame.file}", frame.function)), "cuda") == (
        Doing.WAITS,
        SourceFrame(f"{SITE}/{frame.file}", frame.function),
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from([REDUCES, RECEIVES, SLEEPS, MULTIPLIES, READS, ""]), st.sampled_from(["cpu", "cuda"])
        ),
        min_size=2,
        max_size=6,
    )
)
def test_a_rank_that_waits_for_another_is_never_named(ranks: list[tuple[str, str]]) -> None:
    records = [halted(rank, printed, 90.0 + rank, device=device) for rank, (printed, device) in enumerate(ranks)]
    found = outcome(*records)
    named = [found.rank, *found.also_ranks] if found.rank is not None else []
    assert not any(records[rank].stacks in (REDUCES, RECEIVES, "") for rank in named)


def test_a_rank_of_which_nothing_is_known_is_said_to_stand_still() -> None:
    found = outcome(halted(0, "", 10.0, device="cuda"), halted(1, "", 11.0, device="cuda"))
    assert found.lines[0] == "rank 0 (forward) stands still, and its stacks do not say what for"
