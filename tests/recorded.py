"""Results folders as drivers and ranks leave them, for tests and benchmarks of what reads them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.records import layout
from orchestrator.records.jsonfile import encode
from orchestrator.records.rank import Device, ExceptionRecord, IterationRecord, LastBeacon, RankRecord, StageMemory
from orchestrator.records.spec import AttemptRecord, Batch, BatchTrial, TrialSpec
from orchestrator.vocabulary import Stage

START = 1_750_000_000.0
WINDOW = (3, 4)
ITERATIONS = 4

OF_AN_ITERATION = (
    Stage.FORWARD,
    Stage.BACKWARD,
    Stage.REPLAY,
    Stage.GRAD_SYNC,
    Stage.OPTIMIZER_STEP,
    Stage.BETWEEN_STEPS,
)


def config(modules: list[str] | None, granularity: str | None = "selective") -> dict[str, Any]:
    return {
        "recompute_granularity": granularity,
        "recompute_modules": modules,
        "recompute_method": None,
        "recompute_num_layers": None,
        "model": {"name": "tiny", "num_layers": 4, "hidden_size": 64},
        "parallelism": {"tp": 1, "pp": 2, "world_size": 2},
        "precision": {"params": "fp32"},
        "training": {"seq_length": 128, "micro_batch_size": 1, "global_batch_size": 4},
        "trainer": {"name": "mcore_cpu", "memory_limit_gb": None},
        "revisions": {},
    }


def batch_trial(trial: str, modules: list[str] | None, *, role: str = "trial", world_size: int = 2) -> BatchTrial:
    return BatchTrial(
        trial=trial,
        name=f"recompute_modules={json.dumps(modules)}".replace('"', "").replace(" ", ""),
        role=role,
        trainer="mcore_cpu",
        world_size=world_size,
        config=config(modules),
        steady_window=WINDOW,
        train_iters=ITERATIONS,
    )


def batch(results_dir: Path, trials: list[BatchTrial], *, name: str = "b1", study: str = "demo") -> Batch:
    return Batch(
        batch=name,
        study=study,
        created_at=START,
        results_dir=str(results_dir),
        trials=trials,
        launcher={"kind": "local"},
    )


def write(path: Path, value: Any) -> None:
    """As `write_json`, without waiting for the disk."""
    layout.make_private_dir(path.parent)
    path.write_text(
        json.dumps(encode(value), indent=1, ensure_ascii=False), encoding="utf-8", errors="backslashreplace"
    )
    path.chmod(0o600)


def write_batch(results_dir: Path, made: Batch) -> Path:
    layout.make_private_dir(results_dir)
    path = layout.batch_dir(results_dir, made.batch) / layout.BATCH_FILE
    write(path, made)
    return path


def rank_record(
    trial: str,
    rank: int,
    *,
    attempt: str = "001",
    world_size: int = 2,
    iterations: int = ITERATIONS,
    base: int = 1_000_000,
    ms: float = 100.0,
    every_stage: bool = False,
    seed: int = 0,
) -> RankRecord:
    """A rank that passed: forward peaks rise by iteration, and higher ranks hold less."""
    rng = random.Random(f"{trial}/{attempt}/{rank}/{seed}")
    base = max(base - 1000 * rank, 1)

    def stage(name: Stage, scale: float, entries: int, extra: int = 0) -> StageMemory:
        peak = int(base * scale) + extra
        return StageMemory(
            name, entries, peak, peak + (2 << 20), peak // 2, peak // 2 + (2 << 20), rng.random() * entries / 10
        )

    def iteration(number: int) -> IterationRecord:
        rows = [
            stage(name, 1 + 0.1 * index, 4, (number % 3) * 512 + 512 * rng.randrange(64) * every_stage)
            for index, name in enumerate(OF_AN_ITERATION)
        ]
        if number == 1:
            rows.append(stage(Stage.OPTIMIZER_INIT, 1.45, 1))
        return IterationRecord(
            number=number,
            milliseconds=ms + rng.random() * every_stage + number % 2,
            loss=11.0 - number / 10 + rng.random() * every_stage,
            grad_norm=1.0 + rng.random() * every_stage,
            tflops_per_gpu=400.0,
            peak_allocated=int(base * 1.5) + 512 * number,
            peak_reserved=int(base * 1.5) + (2 << 20),
            stages=rows,
        )

    made = [iteration(number) for number in range(1, iterations + 1)]
    totals: dict[Stage, StageMemory] = {}
    for one in made:
        for row in one.stages:
            known = totals.get(row.stage)
            totals[row.stage] = (
                row if known is None or (row.peak_allocated or 0) > (known.peak_allocated or 0) else known
            )
    setup = list(Stage) if every_stage else [Stage.STARTUP, Stage.MODEL_BUILD, Stage.TEARDOWN]
    for name in setup:
        totals.setdefault(name, stage(name, 0.2, 1))
    return RankRecord(
        trial=trial,
        attempt=attempt,
        rank=rank,
        world_size=world_size,
        local_rank=rank % 8,
        host=f"node{rank // 8}",
        started_at=START,
        ended_at=START + 60,
        ended="exit",
        exit_code=0,
        beacon=LastBeacon(Stage.TEARDOWN, iterations, 0, START + 59),
        measured=True,
        device=Device("cpu", "a processor", None, 80 * 10**9),
        stages=[totals[name] for name in Stage if name in totals],
        iterations=made,
        allocator_retries=0,
        allocator_ooms=0,
        optimizer_state=True,
        software={"torch": "2.13.0", "megatron_core": {"version": "0.16.1", "commit": "a" * 40}},
        effective={"num_layers": 4, "recompute_modules": []} if rank == 0 else None,
    )


def out_of_memory(record: RankRecord, stage: Stage = Stage.FORWARD, iteration: int = 2) -> RankRecord:
    """The same rank, stopped by its capacity in `stage` of `iteration`."""
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.00 GiB is "
        "free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated memory "
        "76.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
    )
    exception = ExceptionRecord(
        "torch.OutOfMemoryError", message, stage=stage, iteration=iteration, microbatch=0, at=START + 30
    )
    return replace(
        record,
        ended_at=START + 31,
        exit_code=1,
        beacon=LastBeacon(Stage.BETWEEN_STEPS, iteration, 0, START + 30.5),  # its stack has unwound
        measured=False,
        iterations=record.iterations[: iteration - 1],
        exception=exception,
        optimizer_state=None,
    )


def attempt_record(
    trial: BatchTrial, *, attempt: str = "001", batch: str = "b1", study: str = "demo", started_at: float = START
) -> AttemptRecord:
    return AttemptRecord(
        trial=trial.trial,
        attempt=attempt,
        batch=batch,
        study=study,
        name=trial.name,
        role=trial.role,
        trainer=trial.trainer,
        world_size=trial.world_size,
        started_at=started_at,
        launcher="local",
        repeat=trial.repeat,
        ended_at=started_at + 61,
        exit_codes={str(rank): 0 for rank in range(trial.world_size)},
    )


def specification(trial: BatchTrial, run_dir: Path, beacon_dir: str = "/nowhere") -> TrialSpec:
    return TrialSpec(
        trial=trial.trial,
        attempt=run_dir.name,
        trainer=trial.trainer,
        world_size=trial.world_size,
        config=trial.config,
        run_dir=str(run_dir),
        beacon_dir=beacon_dir,
        steady_window=trial.steady_window,
        train_iters=trial.train_iters,
        environment=trial.environment,
    )


def write_attempt(
    results_dir: Path,
    trial: BatchTrial,
    ranks: Iterable[RankRecord] | None = None,
    *,
    record: AttemptRecord | None = None,
    beacon_dir: str = "/nowhere",
) -> Path:
    """An attempt's folder; by default one that passed."""
    record = record or attempt_record(trial)
    run_dir = layout.attempt_dir(results_dir, trial.trial, record.attempt)
    for folder in (results_dir, layout.runs_dir(results_dir), run_dir.parent, run_dir):
        layout.make_private_dir(folder)
    write(run_dir / layout.ATTEMPT_FILE, record)
    write(run_dir / layout.SPEC_FILE, specification(trial, run_dir, beacon_dir))
    if ranks is None:
        ranks = [
            rank_record(trial.trial, rank, attempt=record.attempt, world_size=trial.world_size)
            for rank in range(trial.world_size)
        ]
    for one in ranks:
        write(layout.rank_file(run_dir, one.rank), one)
    return run_dir


def demo(results_dir: Path) -> list[BatchTrial]:
    """A study of three trials: the control and `mlp` pass, `core_attn` runs out of memory on rank 1."""
    trials = [
        batch_trial("c" * 20, [], role="control-first"),
        batch_trial("a" * 20, ["mlp"]),
        batch_trial("b" * 20, ["core_attn"]),
    ]
    write_batch(results_dir, batch(results_dir, trials))
    write_attempt(results_dir, trials[0])
    write_attempt(
        results_dir,
        trials[1],
        [rank_record("a" * 20, rank, base=800_000, ms=110.0) for rank in range(2)],
        record=replace(attempt_record(trials[1]), started_at=START + 100, ended_at=START + 160),
    )
    write_attempt(
        results_dir,
        trials[2],
        [
            replace(rank_record("b" * 20, 0), ended="terminated", exit_code=None, measured=False, iterations=[]),
            out_of_memory(rank_record("b" * 20, 1)),
        ],
        record=replace(attempt_record(trials[2]), started_at=START + 200, ended_at=START + 260),
    )
    return trials
