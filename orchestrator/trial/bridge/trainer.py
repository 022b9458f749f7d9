"""Runs one trial through Megatron Bridge's `pretrain`. Checked against Megatron Bridge 0.3.1 (docs/gpu.md)."""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Iterator
from typing import Any

from orchestrator.records.spec import TrialSpec
from orchestrator.trial.bridge import gpu
from orchestrator.trial.bridge.effective import effective_configuration
from orchestrator.trial.bridge.recipe import build
from orchestrator.trial.bridge.seams import install
from orchestrator.trial.compiled_meter import Compilation, CompiledMeter, CompileError
from orchestrator.trial.meter import CudaMeter
from orchestrator.trial.recorder import Recorder
from orchestrator.trial.software import software
from orchestrator.vocabulary import Stage

FORWARD_STEP = "megatron.bridge.training.gpt_step.forward_step"
PACKAGES = ("megatron.bridge", "megatron.core", "transformer_engine")


def train(spec: TrialSpec, recorder: Recorder, rank: int, world_size: int, local_rank: int) -> None:
    """Train `spec.train_iters` iterations and leave every measurement with the recorder.

    Raises:
        RecipeError: the request cannot be turned into a configuration of this revision.
        MissingSeamError: this revision lacks a place that a stage is marked at.
        NoGpuError: this rank has no GPU.
        SharedGpuError: another process holds the GPU's memory.
    """
    gpu.take(local_rank)
    trainer = spec.config["trainer"]
    gpu.limit_memory(local_rank, spec.memory_limit_bytes)
    device = gpu.describe(local_rank)
    recorder.use(CudaMeter(local_rank))
    recorder.facts(device=device)

    with _compiled_beside(trainer, recorder, local_rank):
        pretrain = importlib.import_module("megatron.bridge.training.pretrain")
    found = software(PACKAGES)
    recorder.facts(software=found)
    container = build(spec.config)
    _warn_of_late_variables(container, recorder)
    install(recorder, _revision(found))
    keep_reports_true(recorder)
    recorder.alternate = bool(trainer.get("alternate_recording", False))
    marks = _marks(spec, recorder, rank, world_size, device)
    module, _, function = (trainer.get("forward_step") or FORWARD_STEP).rpartition(".")
    forward_step = getattr(importlib.import_module(module), function)
    # Last, after half a minute of imports: what counts is that nobody holds memory when the model is built.
    waited = gpu.wait_until_empty(local_rank, float(trainer.get("wait_for_empty_gpus_seconds", 30.0)))
    if waited >= 1:
        recorder.facts(notes=[f"waited {waited:.0f} s until other processes had left GPU {local_rank}"])
    pretrain.pretrain(container, forward_step, callbacks=[marks])


@contextlib.contextmanager
def _compiled_beside(trainer: dict[str, Any], recorder: Recorder, device: int) -> Iterator[None]:
    """While what is inside runs, compile what reads memory faster; after it, read by that. Says why where it cannot."""
    if not trainer.get("compiled_meter", True):
        yield
        return
    with contextlib.ExitStack() as stack:
        found: Compilation | CompileError
        try:
            found = stack.enter_context(Compilation())
        except CompileError as error:
            found = error
        yield
        try:
            if isinstance(found, CompileError):
                raise found
            recorder.use(CompiledMeter(found.load(), device))
        except CompileError as error:
            why = f"memory is read through torch's Python interface: {error}"
            recorder.facts(meter="python", notes=[why])
        else:
            recorder.facts(meter="compiled")


def keep_reports_true(recorder: Recorder) -> None:
    """Give whoever asks torch for the run's peak the run's peak, although the recorder resets it at every edge.

    `max_memory_allocated` and `max_memory_reserved` read the module's `memory_stats`, and so does Bridge's report
    (training/utils/train_utils.py, report_memory).
    """
    import torch

    original = torch.cuda.memory.memory_stats

    def memory_stats(device: Any = None) -> dict[str, Any]:
        stats: dict[str, Any] = original(device)
        allocated, reserved = recorder.running_peak()
        for key, peak in (("allocated_bytes.all.peak", allocated), ("reserved_bytes.all.peak", reserved)):
            if key in stats:
                stats[key] = max(stats[key], peak)
        return stats

    torch.cuda.memory.memory_stats = memory_stats
    torch.cuda.memory_stats = memory_stats


def optimizer_has_state(optimizer: Any) -> bool:
    """Whether any parameter's state exists, in an optimizer or in one made of several."""
    parts = getattr(optimizer, "chained_optimizers", None) or [optimizer]
    return any(bool(getattr(getattr(part, "optimizer", part), "state", None)) for part in parts)


def loss_of(losses: dict[str, Any] | None) -> float | None:
    """The language-model loss among a step's losses; None on ranks that are given none (all but the last stage)."""
    for name in sorted(losses or {}, key=lambda key: (key != "lm loss", "lm loss" not in key)):
        value = (losses or {})[name]
        return float(value.item() if hasattr(value, "item") else value)
    return None


def _revision(found: dict[str, Any]) -> str:
    bridge, core = (found.get(name) or {} for name in ("megatron_bridge", "megatron_core"))
    return f"Megatron Bridge {bridge.get('version')} with Megatron Core {core.get('version')}"


def _warn_of_late_variables(container: Any, recorder: Recorder) -> None:
    """A recipe's own variables (`env_vars`, Bridge 0.7 dev) only work if they were set before torch was imported."""
    import os

    wanted = getattr(container, "env_vars", None) or {}
    late = sorted(name for name, value in wanted.items() if os.environ.get(name) != str(value))
    if late:
        recorder.facts(notes=[f"the recipe's variables {', '.join(late)} were not set when torch was imported"])


def _marks(spec: TrialSpec, recorder: Recorder, rank: int, world_size: int, device: dict[str, Any]) -> Any:
    """The callback that marks iterations. Its class can only be made once Bridge is imported."""
    import torch

    callbacks = importlib.import_module("megatron.bridge.training.callbacks")
    flops = importlib.import_module("megatron.bridge.training.utils.flop_utils")

    class Marks(callbacks.Callback):  # type: ignore[misc, name-defined]  # Bridge has no types here
        """Iterations counted from 1 after whatever step a checkpoint left off at."""

        def __init__(self) -> None:
            self.offset = 0
            self.since = 0.0
            self.flops = 0.0
            self.clocks: gpu.ClockReading | None = None

        def on_train_start(self, context: Any) -> None:
            self.offset = int(context.state.train_state.step)
            container = context.state.cfg
            self.flops = float(flops.num_floating_point_operations(container, container.train.global_batch_size))
            if rank == 0:
                recorder.facts(effective=effective_configuration(container, context.model))
            torch.cuda.synchronize()
            self.since = time.perf_counter()

        def on_train_step_start(self, context: Any) -> None:
            number = int(context.state.train_state.step) - self.offset + 1
            if number == max(1, spec.steady_window[0] - 1):
                self.clocks = gpu.ClockReading(device["uuid"])
            recorder.begin_iteration(number)

        def on_train_step_end(self, context: Any) -> None:
            # An iteration lasts from the end of the one before, so that logging and data loading count, as in
            # Bridge's own figure; its reading of elapsed time synchronises at the same place.
            torch.cuda.synchronize()
            now = time.perf_counter()
            seconds, self.since = now - self.since, now
            loss = loss_of(context.loss_dict)
            norm = None if context.grad_norm is None else float(context.grad_norm)
            recorder.end_iteration(
                seconds * 1000,
                loss=loss,
                grad_norm=norm,
                skipped=bool(context.skipped_iter),
                nan=any(value is not None and not math.isfinite(value) for value in (loss, norm)),
                tflops=self.flops / seconds / 1e12 / world_size,
            )
            if recorder.iteration == spec.steady_window[1]:
                self._measured(context)

        def _measured(self, context: Any) -> None:
            problem = getattr(recorder.meter, "problem", None)
            if problem is not None:
                recorder.facts(meter="python", notes=[f"compiled reading of memory was given up: {problem}"])
            recorder.optimizer_state_exists(optimizer_has_state(context.optimizer))
            reading = self.clocks.result() if self.clocks else {}
            driver = reading.pop("driver", None)
            recorder.facts(device=reading)
            if driver:
                recorder.facts(software={"driver": {"version": driver, "found": "nvidia-smi"}})
            recorder.measured()

        def on_train_end(self, context: Any) -> None:
            recorder.rest_in(Stage.TEARDOWN)

    return Marks()
