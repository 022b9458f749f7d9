"""A trial's specification through Megatron Bridge's `pretrain` and nothing else: the rival of `free_gpus.py`.

torchrun --nproc-per-node=2 benchmarks/bare_bridge.py SPEC.json
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from orchestrator.records.jsonfile import decode, read_json
from orchestrator.records.spec import TrialSpec
from orchestrator.trial.bridge.recipe import build


def main(path: Path) -> None:
    import torch

    spec = decode(TrialSpec, read_json(path), str(path))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    pretrain = importlib.import_module("megatron.bridge.training.pretrain")
    module, _, function = spec.config["trainer"]["forward_step"].rpartition(".")
    pretrain.pretrain(build(spec.config), getattr(importlib.import_module(module), function))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
