"""Ranks of trainer mcore_cpu that start fast: one process imports Megatron Core, and forks the ranks of all trials.

As a program it reads lines {"spec": path, "world_size": n, "port": p, "seconds": s} and answers each with how the ranks
ended. What they measured is in their beacons and facts, as in any trial, and is put together as a supervisor does it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.dispatch.rendezvous import HeldPort
from orchestrator.outcome import Evidence, Outcome, decide
from orchestrator.records import layout
from orchestrator.records.assemble import Ending, assemble
from orchestrator.records.beacon import read_head
from orchestrator.records.jsonfile import write_json
from orchestrator.records.rank import (
    ENDED_EXIT,
    ENDED_SIGNAL,
    ENDED_STALL,
    IterationRecord,
    RankRecord,
    StageMemory,
)
from orchestrator.records.spec import TrialSpec
from orchestrator.vocabulary import Stage


def stage(record: RankRecord | IterationRecord, name: str) -> StageMemory | None:
    """A stage of a run or of an iteration; None where it was not entered."""
    return next((item for item in record.stages if item.stage.value == name), None)


def peak(record: RankRecord | IterationRecord, name: str) -> int:
    """Largest allocated bytes in a stage."""
    found = stage(record, name)
    assert found is not None, f"{name} was never entered"
    assert found.peak_allocated is not None, f"{name} was not measured"
    return found.peak_allocated


def entries(record: RankRecord | IterationRecord, name: str) -> int:
    found = stage(record, name)
    return found.entries if found is not None else 0


def held_after_forward(trial: Trial, rank: int = 0) -> int:
    """Bytes alive on a rank when the last forward of the last step ended."""
    found = stage(trial.records[rank].iterations[-1], "forward")
    assert found is not None
    assert found.end_allocated is not None
    return found.end_allocated


def losses(records: list[RankRecord]) -> list[float]:
    """The loss of each iteration, from the ranks that have one: all of them the same."""
    found = [[row.loss for row in record.iterations] for record in records]
    known = [row for row in found if row and row[0] is not None]
    assert known
    assert all(row == known[0] for row in known)
    return [loss for loss in known[0] if loss is not None]


@dataclass(frozen=True)
class Trial:
    """A trial that was run, and the record of each of its ranks."""

    spec: TrialSpec
    records: list[RankRecord]

    @property
    def losses(self) -> list[float]:
        return losses(self.records)

    def outcome(self) -> Outcome:
        """What the product concludes from these records."""
        ranks = {record.rank: record for record in self.records}
        window, iterations = self.spec.steady_window, self.spec.train_iters
        return decide(Evidence(self.spec.world_size, iterations, window, ranks, over=True))


class Ranks:
    """A process with Megatron Core imported, which forks the ranks of one trial after another."""

    def __init__(self, folder: Path, megatron: Path | None = None) -> None:
        """`megatron` is a folder with another Megatron Core than the installed one."""
        self.folder = folder
        self.count = 0
        path = [str(megatron)] if megatron else []
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])},
        )

    def run(self, config: dict[str, Any], seconds: float = 120.0, still: float | None = None) -> Trial:
        """Run a trial with this configuration to its end.

        Ranks that take longer than `seconds`, or of which none moved for `still` seconds after all have imported
        everything, are killed, and count as stalled.
        """
        self.count += 1
        run_dir = self.folder / f"{self.count:03d}"
        run_dir.mkdir(mode=0o700)
        training = config["training"]
        spec = TrialSpec(
            trial=f"trial{self.count}",
            attempt="001",
            trainer="mcore_cpu",
            world_size=config["parallelism"]["world_size"],
            config=config,
            run_dir=str(run_dir),
            beacon_dir=str(run_dir),
            steady_window=tuple(training["steady_window"]),
            train_iters=training["train_iters"],
        )
        write_json(run_dir / layout.SPEC_FILE, spec)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with HeldPort() as held:
            question = {
                "spec": str(run_dir / layout.SPEC_FILE),
                "world_size": spec.world_size,
                "port": held.port,
                "seconds": seconds,
                "still": still,
            }
            print(json.dumps(question), file=self.process.stdin, flush=True)
            ends = json.loads(self.process.stdout.readline())
        return Trial(spec, [assemble(spec, rank, _ending(run_dir, rank, *end)) for rank, end in enumerate(ends)])

    def passed(self, config: dict[str, Any]) -> Trial:
        """`run`, for a trial that must end well."""
        trial = self.run(config)
        for record in trial.records:
            assert record.exit_code == 0, f"rank {record.rank}:\n{record.stderr_tail[-3000:]}"
        return trial

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@contextmanager
def warm_ranks(folder: Path, megatron: Path | None = None) -> Iterator[Ranks]:
    ranks = Ranks(folder, megatron)
    try:
        yield ranks
    finally:
        ranks.close()


def _ending(run_dir: Path, rank: int, status: int, late: bool, ended_at: float) -> Ending:
    log = (run_dir / f"rank-{rank}.log").read_text(errors="replace")
    kind = ENDED_STALL if late else ENDED_SIGNAL if status < 0 else ENDED_EXIT
    return Ending(
        ended=kind,
        ended_at=ended_at,
        exit_code=status if kind == ENDED_EXIT else None,
        signal=-status if kind == ENDED_SIGNAL else None,
        stderr_tail=log[-20_000:],
        stacks=log[-20_000:] if late else "",
    )


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from orchestrator.trial.mcore_cpu.trainer import import_megatron

    import_megatron()
    for line in sys.stdin:
        question = json.loads(line)
        children = [_fork(question, rank) for rank in range(question["world_size"])]
        print(json.dumps(_wait(children, question)), file=answers, flush=True)


def _fork(question: dict[str, Any], rank: int) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        log = os.open(Path(question["spec"]).parent / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(question["world_size"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(question["port"]),
        )
        from orchestrator.trial.child import main

        status = main([question["spec"]])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(children: list[int], question: dict[str, Any]) -> list[tuple[int, bool, float]]:
    """For each rank its exit status, whether it took too long, and when it ended.

    Once one has failed, the others are given five seconds to notice, as a launcher does.
    """
    halt = _Halt(Path(question["spec"]).parent, len(children), question["still"])
    deadline = time.monotonic() + question["seconds"]
    failed = False
    ends: dict[int, tuple[int, bool, float]] = {}
    while len(ends) < len(children):
        late = time.monotonic() > deadline or (not failed and halt.reached())
        if late and not failed:
            _ask_where([child for child in children if child not in ends])
        for child in [child for child in children if child not in ends]:
            if late:
                os.kill(child, signal.SIGKILL)
            found, status = os.waitpid(child, 0 if late else os.WNOHANG)
            if found:
                ends[child] = (os.waitstatus_to_exitcode(status), late and not failed, time.time())
        if not failed and any(end[0] != 0 for end in ends.values()):
            failed, deadline = True, min(deadline, time.monotonic() + 5)
        time.sleep(0.02)
    return [ends[child] for child in children]


class _Halt:
    """Whether none of the ranks has moved for some seconds, once all have imported what they need."""

    def __init__(self, folder: Path, ranks: int, seconds: float | None) -> None:
        self.beacons = [layout.beacon_file(folder, rank) for rank in range(ranks)]
        self.seconds = seconds
        self.heads: list[Any] = []
        self.since = time.monotonic()

    def reached(self) -> bool:
        if self.seconds is None:
            return False
        heads = [read_head(beacon) for beacon in self.beacons]
        starting = any(head is None or Stage.from_code(head.word >> 56) is Stage.STARTUP for head in heads)
        if starting or heads != self.heads:
            self.heads, self.since = heads, time.monotonic()
        return time.monotonic() - self.since > self.seconds


def _ask_where(children: list[int]) -> None:
    """Have ranks print their stacks, as a supervisor does before it ends one that hangs."""
    for child in children:
        os.kill(child, signal.SIGUSR1)
    time.sleep(0.5)


if __name__ == "__main__":
    _serve()
