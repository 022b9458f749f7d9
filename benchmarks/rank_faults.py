"""Forward steps of Megatron Bridge in which rank 1 fails in its third iteration, for `trainer.forward_step`.

`trainer.forward_step=rank_faults.out_of_memory_on_rank_1`, with this folder on PYTHONPATH. When the fault strikes is
written to the file that RANK_FAULT_FILE names, if it is set: seconds since the epoch.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.training.gpt_step import forward_step

STEPS_BEFORE = 2
CHUNK_BYTES = 2**30


def out_of_memory_on_rank_1(state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
    """Rank 1 fills its GPU until an allocation is refused; every other rank goes on."""
    if _strikes(state):
        held = []
        try:
            while True:
                held.append(torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            _say_when()
            raise
    return forward_step(state, data_iterator, model, return_schedule_plan)


def sleep_on_rank_1(state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
    """Rank 1 does nothing any more; every other rank goes on, and waits for it in a collective."""
    if _strikes(state):
        _say_when()
        while True:
            time.sleep(1)
    return forward_step(state, data_iterator, model, return_schedule_plan)


def _strikes(state: Any) -> bool:
    return torch.distributed.get_rank() == 1 and state.train_state.step == STEPS_BEFORE


def _say_when() -> None:
    path = os.environ.get("RANK_FAULT_FILE")
    if path:
        Path(path).write_text(str(time.time()))
