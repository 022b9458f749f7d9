"""The row of a trial, from what was asked."""

from __future__ import annotations

import json
import time
from typing import Any

from orchestrator.records.spec import BatchTrial, TrialSpec
from orchestrator.store.clean import clean
from orchestrator.store.models import ORIGIN_MEASURED

Row = dict[str, Any]


def trial_row(
    trial: str,
    config: Row,
    *,
    trainer: str,
    world_size: int,
    repeat: int = 0,
    origin: str = ORIGIN_MEASURED,
    target: Row | None = None,
    steady_window: tuple[int, int] | None = None,
    train_iters: int | None = None,
) -> Row:
    """A row of `trials`. `config` holds the four recompute settings and the groups of a specification."""
    requested = clean(config)
    granularity, modules = requested.get("recompute_granularity"), requested.get("recompute_modules")
    return {
        "id": trial,
        "trainer": trainer,
        "world_size": world_size,
        "repeat": repeat,
        "origin": origin,
        "requested": requested,
        "target": clean(target) if target else None,
        "is_control": granularity == "selective" and modules == [],
        "recompute_granularity": _as_written(granularity),
        "recompute_modules": _as_written(modules),
        "recompute_method": _as_written(requested.get("recompute_method")),
        "recompute_num_layers": _as_written(requested.get("recompute_num_layers")),
        "steady_first": steady_window[0] if steady_window else None,
        "steady_last": steady_window[1] if steady_window else None,
        "train_iters": train_iters,
        "first_seen": time.time(),
    }


def row_of_spec(spec: TrialSpec | BatchTrial, repeat: int, origin: str) -> Row:
    """The row of a trial that a job was given."""
    return trial_row(
        spec.trial,
        spec.config,
        trainer=spec.trainer,
        world_size=spec.world_size,
        repeat=repeat,
        origin=origin,
        target={
            "environment": spec.environment,
            "memory_limit_bytes": spec.memory_limit_bytes,
            "time_limit_seconds": spec.time_limit_seconds,
        },
        steady_window=spec.steady_window,
        train_iters=spec.train_iters,
    )


def modules_text(modules: list[Any]) -> str:
    """A module list as on a command line: `[core_attn,mlp]`."""
    return "[" + ",".join(str(module) for module in modules) + "]"


def _as_written(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return modules_text(value)
    return json.dumps(value)
