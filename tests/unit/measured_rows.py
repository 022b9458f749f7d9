"""Rows as an attempt on two CPU ranks leaves them, for tests of the analysis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.analysis.rows import PeakScope, Row, StagePeak
from orchestrator.vocabulary import Stage


def row(modules: list[str] | None = None, *, granularity: str | None = "selective", **changes: Any) -> Row:
    """A passing row with this module list; keyword arguments replace fields.

    `peak` (bytes), `rank`, `at` (stage) and `reserved` set its one stage peak, `effective_model` changes the effective
    configuration.
    """
    modules = [] if modules is None else modules
    peak, at = changes.pop("peak", 1_000_000_000), changes.pop("at", Stage.FORWARD)
    hot, reserved = changes.pop("hot", 0), changes.pop("reserved", None)
    settings = {
        "recompute_granularity": granularity,
        "recompute_modules": modules,
        "recompute_method": changes.pop("method", None),
        "recompute_num_layers": changes.pop("num_layers", None),
    }
    model = {"num_layers": 4, "hidden_size": 128, "q_lora_rank": 32} | changes.pop("effective_model", {})
    made = Row(
        trial=f"trial-{granularity}-{'-'.join(modules)}",
        attempt="001",
        name=", ".join(modules) or "[]",
        requested=settings
        | {"model": {"num_layers": 4}, "training": {"seq_length": 64}, "trainer": {"name": "mcore_cpu"}},
        study="demo",
        batch="job-1",
        started_at=100.0,
        effective={"model": model | settings},
        software={"torch": {"version": "2.13"}},
        device_kind="cpu",
        device_name="x86",
        world_size=2,
        ranks_reported=2,
        steady_window=(11, 20),
        label="pass",
        last_iteration=20,
        peak_scope=PeakScope.ALL_RANKS,
        peaks=(StagePeak(hot, at, peak, reserved, hot),),
        step_ms=100.0,
        step_scatter_ms=0.5,
        tflops_per_gpu=1.0,
        losses={1: 4.0, 20: 3.0},
    )
    return replace(made, **changes)


def early_failure(modules: list[str], **changes: Any) -> Row:
    """A row that ended before the framework had finished its configuration."""
    return row(
        modules, effective=None, software={}, label="failed:import_error", peaks=(), step_ms=None, losses={}, **changes
    )
