"""The `bridge` trainer: Megatron Bridge's own training loop on CUDA, marked at its seams."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.records.spec import TrialSpec
    from orchestrator.trial.recorder import Recorder


def train(spec: TrialSpec, recorder: Recorder, rank: int, world_size: int, local_rank: int) -> None:
    """See `orchestrator.trial.bridge.trainer.train`."""
    # Imported here: the seams' table is also read where no torch is installed.
    from orchestrator.trial.bridge.trainer import train as run

    run(spec, recorder, rank, world_size, local_rank)
