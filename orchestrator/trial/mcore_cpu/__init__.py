"""The `mcore_cpu` trainer: the real Megatron Core on CPU over gloo, with tracked memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.records.spec import TrialSpec
    from orchestrator.trial.recorder import Recorder


def train(spec: TrialSpec, recorder: Recorder, rank: int, world_size: int, local_rank: int) -> None:
    """Run one rank of a trial to its end; see `trainer.run`."""
    from orchestrator.trial.mcore_cpu.trainer import run

    run(spec, recorder, rank, world_size, local_rank)
