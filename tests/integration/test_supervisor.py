"""What a rank leaves behind, whatever ends it. Real processes; the trainer follows a script (tests/trainers)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import exitstatus, layout
from orchestrator.records.assemble import lost_record
from orchestrator.records.beacon import read_head
from orchestrator.records.jsonfile import decode, read_json, write_json
from orchestrator.records.rank import RankRecord
from orchestrator.records.spec import TrialSpec
from orchestrator.vocabulary import Stage

pytestmark = pytest.mark.integration

TRAINERS = Path(__file__).parent.parent / "trainers"
GONE_SECONDS = 5.0


class Rank:
    """One rank of a scripted trial, in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.run_dir, self.beacon_dir = root / "run", root / "node"
        self.run_dir.mkdir(mode=0o700)
        self.spec = TrialSpec(
            trial="trial",
            attempt="001",
            trainer="scripted:train",
            world_size=1,
            config={},
            run_dir=str(self.run_dir),
            beacon_dir=str(self.beacon_dir),
            steady_window=(2, 3),
            train_iters=4,
        )
        self.process: subprocess.Popen[str] | None = None
        self.started = 0.0

    def start(self, script: list[list[Any]], prefix: tuple[str, ...] = (), **changes: Any) -> Rank:
        environ = changes.pop("environ", {})
        self.spec = replace(self.spec, config={"script": script}, **changes)
        spec_file = self.run_dir / layout.SPEC_FILE
        write_json(spec_file, self.spec)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "RANK", "WORLD_"))}
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        path = os.pathsep.join(filter(None, [str(TRAINERS), os.environ.get("PYTHONPATH")]))
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "orchestrator.trial", str(spec_file)],
            env={**kept, **place, "PYTHONPATH": path, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        return self

    def wait(self, seconds: float = 20.0) -> int:
        assert self.process is not None
        self.output, self.errors = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def run(self, script: list[list[Any]], **changes: Any) -> RankRecord:
        self.start(script, **changes)
        self.status = self.wait()
        return self.record()

    def record(self, folder: Path | None = None) -> RankRecord:
        path = layout.rank_file(folder or self.run_dir, 0)
        return decode(RankRecord, read_json(path), str(path))

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def said(self, name: str, seconds: float = 10.0) -> str:
        """What the script notes, once it has."""
        return until(lambda: (self.run_dir / name).read_text() if (self.run_dir / name).exists() else None, seconds)

    @property
    def beacon(self) -> Path:
        return layout.beacon_file(self.beacon_dir, 0)

    def trainer_pid(self) -> int:
        head = until(lambda: read_head(self.beacon), 10.0)
        return int(head.pid)


def until(look: Callable[[], Any], seconds: float = GONE_SECONDS) -> Any:
    """The first answer that is something."""
    deadline = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.process.communicate()


SECOND_ITERATION = [["iterations", 1, 1], ["begin", 2, 3]]


def test_a_trial_that_ends_well_leaves_its_measurements(rank: Rank) -> None:
    record = rank.run([["hold", 700], ["iterations", 1, 3], ["measured"], ["iterations", 4, 4]])
    assert rank.status == exitstatus.EXIT_OK
    assert (record.ended, record.exit_code, record.signal, record.exception) == ("exit", 0, None, None)
    assert record.measured
    assert record.optimizer_state is True
    assert [row.number for row in record.iterations] == [1, 2, 3, 4]
    assert [row.loss for row in record.iterations] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert {row.stage: row.entries for row in record.iterations[0].stages}[Stage.FORWARD] == 1
    assert {row.stage: row.peak_allocated for row in record.stages}[Stage.FORWARD] == 700
    assert record.beacon is not None
    assert (record.beacon.stage, record.beacon.iteration) == (Stage.TEARDOWN, 4)
    assert (record.allocator_retries, record.allocator_ooms) == (1, 2)
    assert record.recorder["calls"] > 20
    assert record.notes == []


@pytest.mark.parametrize("stage", ["model_build", "forward", "replay", "optimizer_init"])
def test_an_exception_is_kept_with_the_stage_that_it_was_raised_in(rank: Rank, stage: str) -> None:
    record = rank.run([*SECOND_ITERATION, ["in", "backward", [["in", stage, [["raise", "the disk of foo is full"]]]]]])
    assert rank.status == exitstatus.EXIT_FAILED
    assert (record.ended, record.exit_code) == ("exit", 1)
    raised = record.exception
    assert raised is not None
    assert (raised.type, raised.message) == ("scripted.ScriptedError", "the disk of foo is full")
    assert (raised.stage, raised.iteration, raised.microbatch) == (Stage(stage), 2, 3)
    assert (raised.frames[0].function, raised.frames[-1].function) == ("main", "do_raise")
    assert "ScriptedError: the disk of foo is full" in record.stderr_tail


def test_a_handled_exception_is_no_failure(rank: Rank) -> None:
    record = rank.run([["try", [["in", "forward", [["raise", "never mind"]]]]], ["iterations", 1, 1]])
    assert rank.status == exitstatus.EXIT_OK
    assert record.exception is None


@pytest.mark.parametrize(("said", "code"), [(3, 3), ("no such recipe", 1), (0, 0)])
def test_system_exit_is_kept_with_its_status(rank: Rank, said: Any, code: int) -> None:
    record = rank.run([["in", "model_build", [["exit", said]]]])
    assert (record.ended, record.exit_code) == ("exit", code)
    if code == 0:
        assert (rank.status, record.exception, record.measured) == (exitstatus.EXIT_OK, None, False)
        assert record.notes == ["the trainer left with status 0 in model_build"]
        return
    assert rank.status == exitstatus.EXIT_FAILED
    assert record.exception is not None
    assert (record.exception.type, record.exception.message) == ("SystemExit", str(said))
    assert record.exception.stage is Stage.MODEL_BUILD


def test_an_exit_that_no_handler_sees_is_kept_with_the_last_stage(rank: Rank) -> None:
    record = rank.run([*SECOND_ITERATION, ["in", "optimizer_step", [["os_exit", 5]]]])
    assert rank.status == exitstatus.EXIT_FAILED
    assert (record.ended, record.exit_code, record.exception) == ("exit", 5, None)
    assert record.beacon is not None
    assert (record.beacon.stage, record.beacon.iteration) == (Stage.OPTIMIZER_STEP, 2)


@pytest.mark.parametrize("stage", ["forward", "backward", "optimizer_step"])
def test_sigkill_of_the_trainer_names_its_stage(rank: Rank, stage: str) -> None:
    record = rank.run([*SECOND_ITERATION, ["in", stage, [["kill_self", "SIGKILL"]]]])
    assert rank.status == exitstatus.EXIT_SIGNAL
    assert (record.ended, record.signal, record.exit_code) == ("signal", signal.SIGKILL, None)
    assert record.beacon is not None
    assert (record.beacon.stage, record.beacon.iteration, record.beacon.microbatch) == (Stage(stage), 2, 3)
    assert [row.number for row in record.iterations] == [1]


def test_a_segfault_names_its_stage_and_leaves_python_stacks(rank: Rank) -> None:
    record = rank.run([*SECOND_ITERATION, ["in", "backward", [["segfault"]]]])
    assert (record.ended, record.signal) == ("signal", signal.SIGSEGV)
    assert record.beacon is not None
    assert record.beacon.stage is Stage.BACKWARD
    assert "Segmentation fault" in record.stderr_tail
    assert "do_segfault" in record.stderr_tail


def test_a_hang_is_ended_and_shows_where_it_hung(rank: Rank) -> None:
    record = rank.run([*SECOND_ITERATION, ["in", "grad_sync", [["sleep", 600]]]], stall_seconds=2.0)
    assert rank.status == exitstatus.EXIT_STALL
    assert (record.ended, record.exit_code, record.signal) == ("stall", None, None)
    assert record.beacon is not None
    assert record.beacon.stage is Stage.GRAD_SYNC
    assert "do_sleep" in record.stderr_tail
    assert time.monotonic() - rank.started < 2.0 + GONE_SECONDS


def test_a_hang_with_many_threads_shows_the_one_that_trains_and_what_it_sleeps_in(rank: Rank) -> None:
    record = rank.run([["threads", 20], *SECOND_ITERATION, ["in", "forward", [["sleep", 600]]]], stall_seconds=2.0)
    assert record.stacks.startswith("Main thread asleep in clock_nanosleep\n")
    assert record.stacks.count("most recent call first") > 20
    assert "do_sleep" in record.stacks.rpartition("Current thread")[2]


def test_a_hang_with_more_threads_than_are_printed_shows_the_one_that_trains(rank: Rank) -> None:
    record = rank.run([["threads", 120], *SECOND_ITERATION, ["in", "forward", [["sleep", 600]]]], stall_seconds=2.0)
    assert "do_sleep" in record.stacks.rpartition("Stack (most recent call first):")[2]


def test_a_hang_of_a_trainer_with_an_odd_name_that_naps_is_no_sleep(rank: Rank) -> None:
    record = rank.run(
        [["call_itself", "f) S fffe"], *SECOND_ITERATION, ["in", "forward", [["nap"]]]], stall_seconds=2.0
    )
    assert record.ended == "stall"
    assert record.stacks.startswith("Current thread")
    assert "do_nap" in record.stacks


def test_whoever_asks_a_rank_to_end_while_it_is_asked_where_it_is_does_not_wait(rank: Rank) -> None:
    script = [["ignore", "SIGUSR1"], ["ignore", "SIGABRT"], *SECOND_ITERATION, ["note", "hangs", "yes"], ["sleep", 600]]
    rank.start(script, stall_seconds=1.0)
    rank.said("hangs")
    time.sleep(1.2)  # within the second that it is asked
    asked = time.monotonic()
    rank.signal(signal.SIGTERM)
    assert rank.wait() == exitstatus.EXIT_STALL
    assert time.monotonic() - asked < 0.5
    assert rank.record().ended == "stall"


def test_a_hang_that_took_the_signal_away_still_shows_its_stack(rank: Rank) -> None:
    record = rank.run([["ignore", "SIGUSR1"], ["in", "forward", [["sleep", 600]]]], stall_seconds=2.0)
    assert record.ended == "stall"
    assert "do_sleep" in record.stderr_tail


def test_a_rank_that_stood_still_when_it_was_asked_to_end_says_what_it_was_doing(rank: Rank) -> None:
    rank.start([*SECOND_ITERATION, ["in", "forward", [["sleep", 600]]]], stall_seconds=4.0)
    log = layout.rank_log(rank.run_dir, 0)
    until(lambda: log.exists() and "do_sleep" in log.read_text(), 10.0)
    rank.signal(signal.SIGTERM)
    assert rank.wait() == exitstatus.EXIT_TERMINATED
    assert "do_sleep" in rank.record().stacks


def test_a_rank_that_moved_again_does_not_say_what_it_was_doing_before(rank: Rank) -> None:
    slow = ["in", "forward", [["sleep", 3.6]]]
    rank.start([["begin", 1], slow, ["note", "on", "yes"], ["sleep", 600]], stall_seconds=4.0)
    rank.said("on")
    time.sleep(0.5)
    rank.signal(signal.SIGTERM)
    assert rank.wait() == exitstatus.EXIT_TERMINATED
    record = rank.record()
    assert "do_sleep" in record.stderr_tail
    assert record.stacks == ""


def test_a_trial_past_its_time_limit_is_ended_though_it_moves(rank: Rank) -> None:
    steps = [["begin", 1], *([["in", "forward", [["sleep", 0.05]]]] * 1000)]
    record = rank.run(steps, time_limit_seconds=1.5, stall_seconds=60.0)
    assert (rank.status, record.ended) == (exitstatus.EXIT_TIME_LIMIT, "time_limit")


def test_an_exception_is_not_lost_in_a_cleanup_that_hangs(rank: Rank) -> None:
    inside = [["begin", 2], ["in", "forward", [["raise", "out of everything"]]]]
    record = rank.run([["hang_in_cleanup", inside]], stall_seconds=2.0)
    assert (rank.status, record.ended, record.exit_code) == (exitstatus.EXIT_FAILED, "exit", 1)
    assert record.exception is not None
    assert (record.exception.message, record.exception.stage) == ("out of everything", Stage.FORWARD)
    assert any("was killed" in note for note in record.notes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_rank_that_is_asked_to_end_leaves_its_record_within_two_seconds(rank: Rank, number: signal.Signals) -> None:
    rank.start(
        [*SECOND_ITERATION, ["in", "backward", [["ignore", "SIGTERM"], ["note", "there", "yes"], ["sleep", 60]]]]
    )
    rank.said("there")
    asked = time.monotonic()
    rank.signal(number)
    until(lambda: layout.rank_file(rank.run_dir, 0).exists())
    assert time.monotonic() - asked < 2.0
    assert rank.wait() == exitstatus.EXIT_TERMINATED
    record = rank.record()
    assert record.ended == "terminated"
    assert record.beacon is not None
    assert (record.beacon.stage, record.beacon.iteration) == (Stage.BACKWARD, 2)
    assert record.notes[0] == f"asked to end by {number.name}"
    assert gone(rank.trainer_pid())


def test_a_rank_that_is_asked_to_end_before_its_trainer_runs_leaves_a_record(rank: Rank) -> None:
    rank.start([["sleep", 60]])
    assert rank.process is not None
    status = Path(f"/proc/{rank.process.pid}/status")
    until(lambda: any(hears(status.read_text(), mask, signal.SIGTERM) for mask in ("SigBlk", "SigCgt")))
    rank.signal(signal.SIGTERM)
    assert rank.wait() == exitstatus.EXIT_TERMINATED
    assert rank.record().ended == "terminated"


def hears(status: str, mask: str, number: signal.Signals) -> bool:
    """Whether a signal is in one of the masks of /proc/PID/status."""
    line = next(line for line in status.splitlines() if line.startswith(mask))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_a_step_that_is_signalled_as_a_whole_was_asked_to_end(rank: Rank) -> None:
    rank.start([["begin", 1], ["in", "forward", [["note", "there", "yes"], ["sleep", 60]]]])
    rank.said("there")
    assert rank.process is not None
    os.killpg(rank.process.pid, signal.SIGTERM)
    assert rank.wait() == exitstatus.EXIT_TERMINATED
    assert rank.record().ended == "terminated"


def test_usr2_ends_neither_supervisor_nor_trainer(rank: Rank) -> None:
    rank.start([["note", "there", "yes"], ["sleep", 0.5], ["iterations", 1, 1]])
    rank.said("there")
    assert rank.process is not None
    os.killpg(rank.process.pid, signal.SIGUSR2)
    assert rank.wait() == exitstatus.EXIT_OK
    assert len(rank.record().iterations) == 1


def test_sigkill_of_the_supervisor_kills_the_trainer_and_the_beacon_tells_the_stage(rank: Rank) -> None:
    inside = [["hold", 900], ["complain", "last words"], ["note", "there", "yes"], ["sleep", 60]]
    rank.start([*SECOND_ITERATION, ["in", "optimizer_step", inside]])
    rank.said("there")
    trainer = rank.trainer_pid()
    rank.signal(signal.SIGKILL)
    assert rank.wait() == -signal.SIGKILL
    until(lambda: gone(trainer))
    assert not layout.rank_file(rank.run_dir, 0).exists()
    record = lost_record(rank.spec, 0)
    assert (record.ended, record.exit_code, record.signal) == ("lost", None, None)
    assert record.beacon is not None
    assert (record.beacon.stage, record.beacon.iteration) == (Stage.OPTIMIZER_STEP, 2)
    assert [row.number for row in record.iterations] == [1]
    assert record.stderr_tail == "last words\n"
    assert record.ended_at is not None
    write_json(rank.run_dir / "again.json", record)
    assert decode(RankRecord, read_json(rank.run_dir / "again.json")) == record


@pytest.mark.parametrize("ending", [["raise", "x"], ["kill_self", "SIGKILL"], ["sleep", 0]])
def test_nothing_that_a_trainer_started_survives_it(rank: Rank, ending: list[Any]) -> None:
    rank.run([["grandchildren"], ending])
    for name in ("grandchild-0", "grandchild-1", "grandchild-2"):
        assert gone(int(rank.said(name)))
    assert time.monotonic() - rank.started < GONE_SECONDS


def test_a_supervisor_ends_with_its_driver_when_it_is_told_to(rank: Rank, tmp_path: Path) -> None:
    rank.spec = replace(rank.spec, config={"script": [["begin", 1], ["note", "there", "yes"], ["sleep", 60]]})
    write_json(rank.run_dir / "spec.json", rank.spec)
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import os, subprocess, sys, time\n"
        "environ = {**os.environ, 'ORCHESTRATOR_PARENT_DEATH': str(os.getpid())}\n"
        "subprocess.Popen([sys.executable, '-m', 'orchestrator.trial', sys.argv[1]], env=environ)\n"
        "time.sleep(60)\n"
    )
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    environ = {**os.environ, **place, "PYTHONPATH": str(TRAINERS)}
    process = subprocess.Popen([sys.executable, str(driver), str(rank.run_dir / "spec.json")], env=environ)
    rank.said("there")
    trainer = rank.trainer_pid()
    process.kill()
    process.wait()
    until(lambda: gone(trainer))
    until(lambda: layout.rank_file(rank.run_dir, 0).exists())
    assert rank.record().ended == "terminated"


def test_a_measured_trial_has_a_record_before_it_ends(rank: Rank) -> None:
    rank.start([["iterations", 1, 3], ["measured"], ["in", "teardown", [["sleep", 60]]]])
    until(lambda: layout.rank_file(rank.run_dir, 0).exists())
    first = rank.record()
    assert (first.ended, first.measured, first.ended_at) == ("running", True, None)
    assert [row.number for row in first.iterations] == [1, 2, 3]
    rank.signal(signal.SIGTERM)
    rank.wait()
    last = rank.record()
    assert (last.ended, last.measured) == ("terminated", True)


def test_a_failure_after_the_measurement_leaves_the_measurement(rank: Rank) -> None:
    record = rank.run([["iterations", 1, 3], ["measured"], ["in", "teardown", [["raise", "address in use"]]]])
    assert record.measured
    assert record.exception is not None
    assert record.exception.stage is Stage.TEARDOWN


def test_secrets_are_in_no_file(rank: Rank) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz"
    record = rank.run(
        [
            ["facts", {"effective": {"url": "postgresql://me:hunter2@db/x", "api_key": "k-1234"}}],
            ["complain", f"GET with Bearer {secret}"],
            ["print", f"HF_TOKEN={secret}"],
            ["raise", f"401 for {secret}"],
        ]
    )
    written = [path for path in (*rank.run_dir.iterdir(), *rank.beacon_dir.iterdir()) if path.name != layout.SPEC_FILE]
    assert len(written) == 4
    for path in written:
        for hidden in (secret, "hunter2", "k-1234"):
            assert hidden.encode() not in path.read_bytes(), path
    assert record.effective == {"url": "postgresql://me:<redacted>@db/x", "api_key": "<redacted>"}


def test_both_streams_are_in_the_log_and_the_last_errors_in_the_record(rank: Rank) -> None:
    many = [["complain", f"line {number:05d} " + "x" * 200] for number in range(600)]
    record = rank.run([["print", "to stdout"], *many, ["complain", "the end"]])
    log = layout.rank_log(rank.run_dir, 0).read_text()
    assert "to stdout\n" in log
    assert log.count("\n") == 602
    assert record.stderr_tail.endswith("the end\n")
    assert "line 00000" not in record.stderr_tail
    assert len(record.stderr_tail) == 65_536
    assert layout.rank_log(rank.run_dir, 0).stat().st_mode & 0o077 == 0


def test_a_trial_finds_its_variables_and_its_place_before_it_imports_anything(rank: Rank) -> None:
    names = ["PYTORCH_CUDA_ALLOC_CONF", "RANK", "MASTER_PORT", "PYTHONHASHSEED"]
    wanted = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "RANK": "7", "PYTHONHASHSEED": "5"}
    rank.run([["note_environment", name] for name in names], environment=wanted)
    assert [rank.said(name) for name in names] == ["expandable_segments:True", "0", "29500", "5"]


def test_slurm_says_which_rank_it_is_where_nobody_else_does(rank: Rank) -> None:
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[007-008]"}
    rank.spec = replace(rank.spec, environment={"MASTER_PORT": "15001"})
    script = [["note_environment", name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]
    rank.start(script, prefix=("env", *(f"--unset={name}" for name in PLACE)), environ=environ)
    assert rank.wait() == exitstatus.EXIT_OK, rank.errors
    assert [rank.said(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")] == [
        "0",
        "1",
        "gpu007",
        "15001",
    ]


PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def test_a_rank_that_cannot_know_which_it_is_says_so_in_one_line(rank: Rank) -> None:
    rank.start([], prefix=("env", *(f"--unset={name}" for name in PLACE)))
    assert rank.wait() == exitstatus.EXIT_USAGE
    assert "set RANK, WORLD_SIZE, LOCAL_RANK" in rank.errors
    assert rank.errors.count("\n") == 1


def test_an_unknown_trainer_is_answered_with_the_nearest_one(rank: Rank) -> None:
    record = rank.run([], trainer="mcore-cpu")
    assert record.exception is not None
    assert record.exception.stage is Stage.STARTUP
    assert "did you mean mcore_cpu?" in record.exception.message


def test_a_missing_framework_is_answered_with_the_extra_that_brings_it(rank: Rank, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    record = rank.run([], trainer="mcore_cpu", environ={"PYTHONPATH": str(blocked)})
    assert record.exception is not None
    assert record.exception.type == "ModuleNotFoundError"
    assert "pip install 'recompute-orchestrator[cpu]'" in record.exception.message


@pytest.mark.parametrize("measured", [False, True])
def test_a_record_that_the_run_folder_refuses_stays_on_the_node(rank: Rank, measured: bool) -> None:
    """The folder is moved away, which root cannot write to either."""
    script = [["iterations", 1, 3], *([["measured"]] if measured else []), ["note", "there", "yes"], ["sleep", 0.6]]
    rank.start(script)
    rank.said("there")
    if measured:
        until(lambda: layout.rank_file(rank.run_dir, 0).exists())
    rank.run_dir.rename(rank.run_dir.with_name("moved"))
    assert rank.wait() == exitstatus.EXIT_RECORD_ELSEWHERE
    assert rank.errors.count("\n") == 1
    assert str(layout.rank_file(rank.beacon_dir, 0)) in rank.errors
    record = rank.record(rank.beacon_dir)
    assert (record.ended, record.exit_code, len(record.iterations)) == ("exit", 0, 3)
    assert "cannot be written" in record.notes[-1]
    if measured:
        first = json.loads(layout.rank_file(rank.run_dir.with_name("moved"), 0).read_text())
        assert first["ended"] == "running"


def test_a_disk_that_is_full_leaves_no_half_of_a_record(rank: Rank) -> None:
    """A limit on the size of files stands for it: no file gets past 20,000 bytes, no record either."""
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
    prefix = (sys.executable, "-c", limit + "os.execv(sys.argv[1], sys.argv[1:])")
    rank.start([["iterations", 1, 3], *([["complain", "x" * 1000]] * 30)], prefix=prefix)
    assert rank.wait() == exitstatus.EXIT_NO_RECORD
    assert rank.errors.count("\n") == 1
    assert "it is lost" in rank.errors
    for folder in (rank.run_dir, rank.beacon_dir):
        assert not layout.rank_file(folder, 0).exists()
        assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    record = lost_record(rank.spec, 0)
    assert len(record.iterations) == 3
    assert layout.rank_log(rank.run_dir, 0).stat().st_size <= 20_000


def test_a_node_folder_that_others_can_write_is_refused_in_the_record(rank: Rank) -> None:
    rank.beacon_dir.mkdir()
    rank.beacon_dir.chmod(0o777)
    record = rank.run([["iterations", 1, 3]])
    assert rank.status == exitstatus.EXIT_FAILED
    assert "can be written by others" in record.stderr_tail
    assert (record.exit_code, record.beacon) == (exitstatus.EXIT_USAGE, None)


def test_a_log_without_room_does_not_harm_the_trial(rank: Rank) -> None:
    layout.rank_log(rank.run_dir, 0).symlink_to("/dev/full")
    record = rank.run([["iterations", 1, 3], ["complain", "still here"]])
    assert rank.status == exitstatus.EXIT_OK
    assert record.stderr_tail == "still here\n"
    assert any("no log" in note for note in record.notes)
