"""How long 2,000 candidates take to predict: 40 batches and layouts of Moonlight 16B by 50 ways to recompute.

Prints one JSON line: the best and the worst of several runs in one process, each with cold caches of its own, by the
clock and in processor seconds, which tell a busy machine from a slow program.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from orchestrator.predict import layers, ledger, memory, walk
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.read import read_job

RUNS = 5
LABELS = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")


def requests() -> list[dict[str, Any]]:
    model = OmegaConf.to_container(OmegaConf.load(Path(__file__).parent.parent / "conf/model/moonlight_16b.yaml"))
    assert isinstance(model, dict)
    sets = [list(chosen) for size in (0, 1, 2, 3) for chosen in itertools.combinations(LABELS, size)][:46]
    modes: list[dict[str, Any]] = [
        {"recompute_granularity": "selective", "recompute_modules": chosen, "recompute_method": None,
         "recompute_num_layers": None} for chosen in sets
    ]  # fmt: skip
    whole = (("uniform", 1), ("uniform", 3), ("block", 4), ("block", 8))
    modes += [
        {"recompute_granularity": "full", "recompute_modules": None, "recompute_method": method,
         "recompute_num_layers": number} for method, number in whole
    ]  # fmt: skip
    points = itertools.product((1, 2, 4, 8), ((1, 1), (1, 8), (2, 4), (2, 8), (4, 8)), (4096, 8192))
    found = []
    for micro, (tp, ep), length in points:
        base = {
            "model": {"huggingface_config": model["huggingface_config"]},
            "parallelism": {"tp": tp, "pp": 1, "vpp": None, "cp": 1, "ep": ep, "etp": 1, "sequence_parallel": tp > 1,
                            "layout": None, "world_size": 8},
            "precision": {"params_dtype": "bf16"},
            "training": {"seq_length": length, "micro_batch_size": micro, "global_batch_size": 64},
            "trainer": {"name": "bridge"},
        }  # fmt: skip
        found += [{**base, **mode} for mode in modes]
    return found


def forget() -> None:
    for cached in (
        layers.layer_ledger, ledger.layer_memory, memory.rank_state, walk.walk, memory.model_state,
        memory.layer_parameters, memory.chunks_of,
    ):  # fmt: skip
        cached.cache_clear()


def main() -> None:
    asked = requests()
    seconds, own = [], []
    for _ in range(RUNS):
        forget()
        started, worked = time.perf_counter(), time.process_time()
        peaks = [predict_memory(read_job(request).job).peak for request in asked]
        seconds.append(time.perf_counter() - started)
        own.append(time.process_time() - worked)
    print(
        json.dumps(
            {
                "benchmark": "predict",
                "candidates": len(asked),
                "different_peaks": len(set(peaks)),
                "seconds_best": round(min(seconds), 3),
                "seconds_median": round(statistics.median(seconds), 3),
                "seconds_worst": round(max(seconds), 3),
                "processor_seconds_best": round(min(own), 3),
                "processor_seconds_worst": round(max(own), 3),
                "goal_seconds": 1.0,
            }
        )
    )


if __name__ == "__main__":
    main()
