"""A results folder as a driver and its ranks leave it, for tests that collect one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.records import layout
from orchestrator.records.jsonfile import write_json
from orchestrator.records.rank import Device, IterationRecord, RankRecord, StageMemory
from orchestrator.records.spec import AttemptRecord, Batch, BatchTrial, TrialSpec
from orchestrator.vocabulary import Stage

RANKS = 2


def write_study(
    results: Path, study: str, modules: list[list[str]], *, batch: str, started: float = 1000.0, slower_ms: float = 0.0
) -> None:
    """A batch in which every candidate passed, every step slower by so much; the first is usually the control."""
    layout.make_private_dir(results)
    folder = layout.batch_dir(results, batch)
    layout.make_private_dir(folder)
    trials = [_batch_trial(labels) for labels in modules]
    write_json(
        folder / layout.BATCH_FILE,
        Batch(batch, study, started, str(results), trials=trials, launcher={"kind": "local"}),
    )
    for number, trial in enumerate(trials):
        _write_attempt(results, trial, study, batch, started + number, slower_ms)


def _batch_trial(labels: list[str]) -> BatchTrial:
    return BatchTrial(
        trial=f"{'-'.join(labels) or 'control'}".ljust(20, "0")[:20],
        name=", ".join(labels) or "[]",
        role="trial" if labels else "control-first",
        trainer="mcore_cpu",
        world_size=RANKS,
        config=_config(labels),
        steady_window=(2, 3),
        train_iters=3,
    )


def _config(labels: list[str]) -> dict[str, Any]:
    return {
        "recompute_granularity": "selective",
        "recompute_modules": labels,
        "recompute_method": None,
        "recompute_num_layers": None,
        "model": {"num_layers": 2},
        "training": {"seq_length": 8},
        "trainer": {"name": "mcore_cpu"},
    }


def _write_attempt(results: Path, trial: BatchTrial, study: str, batch: str, started: float, slower_ms: float) -> None:
    run_dir = layout.new_attempt_dir(results, trial.trial)
    spec = TrialSpec(
        trial=trial.trial,
        attempt=run_dir.name,
        trainer=trial.trainer,
        world_size=RANKS,
        config=trial.config,
        run_dir=str(run_dir),
        beacon_dir="/tmp",
        steady_window=trial.steady_window,
        train_iters=trial.train_iters,
    )
    write_json(run_dir / layout.SPEC_FILE, spec)
    write_json(
        run_dir / layout.ATTEMPT_FILE,
        AttemptRecord(
            trial=trial.trial,
            attempt=run_dir.name,
            batch=batch,
            study=study,
            name=trial.name,
            role=trial.role,
            trainer=trial.trainer,
            world_size=RANKS,
            started_at=started,
            launcher="local",
            ended_at=started + 10,
            exit_codes=dict.fromkeys(map(str, range(RANKS)), 0),
        ),
    )
    for rank in range(RANKS):
        write_json(layout.rank_file(run_dir, rank), _rank(spec, rank, started, slower_ms))


def _rank(spec: TrialSpec, rank: int, started: float, slower_ms: float) -> RankRecord:
    labels = spec.config["recompute_modules"]
    peak = 1_000_000 - 100_000 * len(labels) + rank
    stages = [
        StageMemory(Stage.FORWARD, 3, peak, None, 10, None, 1.0),
        StageMemory(Stage.REPLAY, 3 * len(labels), peak - 5, None, 10, None, 1.0),
        StageMemory(Stage.OPTIMIZER_STEP, 3, 500, None, 10, None, 1.0),
    ]
    return RankRecord(
        trial=spec.trial,
        attempt=spec.attempt,
        rank=rank,
        world_size=RANKS,
        local_rank=rank,
        host="node",
        started_at=started,
        ended_at=started + 9,
        ended="exit",
        exit_code=0,
        measured=True,
        device=Device("cpu", "x86"),
        stages=stages,
        iterations=[
            IterationRecord(
                n, 10.0 + slower_ms + len(labels) + n / 100, loss=4.0 - n, peak_allocated=peak, stages=stages
            )
            for n in (1, 2, 3)
        ],
        optimizer_state=True,
        software={"torch": {"version": "2"}},
        effective={"model": {"num_layers": 2, **{key: spec.config[key] for key in spec.config if "recompute" in key}}}
        if rank == 0
        else None,
    )
