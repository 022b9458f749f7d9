"""Megatron Core's own training loop on the CPU: its model, schedules, distributed optimizer and recompute."""

from __future__ import annotations

import datetime
import importlib
import math
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from orchestrator.records.spec import TrialSpec
from orchestrator.trial.bridge.effective import built_layers
from orchestrator.trial.mcore_cpu import standins
from orchestrator.trial.mcore_cpu.classes import hidden
from orchestrator.trial.mcore_cpu.collectives import leave_copies_out_of, settle_collectives
from orchestrator.trial.mcore_cpu.effective import as_json
from orchestrator.trial.mcore_cpu.faults import commit_fault
from orchestrator.trial.mcore_cpu.flops import step_flops
from orchestrator.trial.mcore_cpu.limits import check_limits
from orchestrator.trial.mcore_cpu.memory import TrackedMemory
from orchestrator.trial.mcore_cpu.request import Request, read_request
from orchestrator.trial.mcore_cpu.seams import gradient_sync, install_seams
from orchestrator.trial.mcore_cpu.tokens import microbatches
from orchestrator.trial.mcore_cpu.transformer import DTYPES, build_transformer_config
from orchestrator.trial.recorder import Recorder
from orchestrator.trial.software import software
from orchestrator.vocabulary import Stage

PACKAGES = ("torch", "megatron.core")


def run(spec: TrialSpec, recorder: Recorder, rank: int, world_size: int, local_rank: int) -> None:
    """Train one trial to its end on this rank; the process belongs to it alone.

    Raises:
        RejectedError: the request is not possible here.
        SeamGoneError: the installed Megatron Core has another shape than those checked.
        torch.OutOfMemoryError: an allocation crossed `trainer.memory_limit_gb`.
    """
    request = read_request(spec.config, world_size)
    check_limits(request)
    torch.set_num_threads(request.options.threads_per_rank)
    memory = TrackedMemory(spec.memory_limit_bytes or request.options.memory_limit_bytes)
    recorder.use(memory)
    trial = _Trial(spec, request, recorder, memory, rank)
    commit_fault(request.options.fault, recorder, memory, rank, trial.spoil_gradient)
    with memory:
        trial.run()


def import_megatron() -> None:
    """Import Megatron Core with every stand-in. A process that did this can be forked into ranks.

    Raises:
        SeamGoneError: the installed Megatron Core has another shape than those checked.
    """
    standins.install_for_torch()
    settle_collectives()
    with hidden(["wandb"]):  # inference and timers import it where they can, 0.3 s of each start
        for module in (
            "megatron.core.distributed",
            "megatron.core.models.gpt.gpt_layer_specs",
            "megatron.core.models.gpt.gpt_model",
            "megatron.core.optimizer",
            "megatron.core.pipeline_parallel.schedules",
            "megatron.core.transformer.moe.token_dispatcher",
        ):
            importlib.import_module(module)
    standins.install_for_megatron()


class _Trial:
    """One rank of one trial: what is set up, in the order in which it is needed, and the loop."""

    def __init__(self, spec: TrialSpec, request: Request, recorder: Recorder, memory: TrackedMemory, rank: int) -> None:
        self.spec = spec
        self.request = request
        self.recorder = recorder
        self.memory = memory
        self.rank = rank
        self.config: Any = None
        self.chunks: list[Any] = []
        self.optimizer: Any = None
        self.batches: list[Iterator[Any]] = []

    def run(self) -> None:
        setup = (
            (Stage.STARTUP, self._start),
            (Stage.DISTRIBUTED_INIT, self._join),
            (Stage.MODEL_BUILD, self._build_model),
            (Stage.OPTIMIZER_BUILD, self._build_optimizer),
            (Stage.DATA_BUILD, self._build_data),
        )
        for stage, build in setup:
            self.recorder.rest_in(stage)
            build()
        self._train()
        self.recorder.rest_in(Stage.TEARDOWN)
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()

    def _start(self) -> None:
        import_megatron()
        leave_copies_out_of(self.memory)
        install_seams(self.recorder)
        device = {"kind": "cpu", "name": _processor(), "capacity_bytes": self.memory.capacity()}
        self.recorder.facts(software=software(PACKAGES), device=device)
        self.config = build_transformer_config(self.request)

    def _join(self) -> None:
        from megatron.core import parallel_state, tensor_parallel

        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost", "::1"):
            # Without it gloo asks the resolver for this host's name, which a laptop's may not know.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo",
            rank=self.rank,
            world_size=self.request.world_size,
            timeout=datetime.timedelta(seconds=max(60.0, 4 * self.spec.stall_seconds)),
        )
        layout = self.request.parallelism
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            virtual_pipeline_model_parallel_size=layout.vpp,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            expert_tensor_parallel_size=layout.etp,
            create_gloo_process_groups=False,
        )
        # As Megatron's own training does: stages of the pipeline differ, replicas do not.
        seed = self.request.training.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
        torch.manual_seed(seed)
        tensor_parallel.model_parallel_cuda_manual_seed(seed)

    def _build_model(self) -> None:
        from megatron.core.distributed import DistributedDataParallel

        from orchestrator.trial.mcore_cpu.model import build_model

        self.ddp = self._ddp_config()
        self.chunks = [
            DistributedDataParallel(self.config, self.ddp, chunk, disable_bucketing=index > 0)
            for index, chunk in enumerate(build_model(self.request, self.config))
        ]
        for chunk in self.chunks:
            chunk.train()

    def _ddp_config(self) -> Any:
        from megatron.core.distributed import DistributedDataParallelConfig

        options = self.request.options
        return DistributedDataParallelConfig(
            grad_reduce_in_fp32=bool(self.request.precision.get("grad_reduce_in_fp32", True)),
            overlap_grad_reduce=options.overlap_grad_reduce,
            overlap_param_gather=options.overlap_param_gather,
            use_distributed_optimizer=options.use_distributed_optimizer,
            check_for_nan_in_grad=options.check_for_nan_in_grad,
        )

    def _build_optimizer(self) -> None:
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        options = self.request.options
        self.optimizer_config = OptimizerConfig(
            optimizer="adam",
            lr=options.learning_rate,
            clip_grad=1.0,
            bf16=self.request.params_dtype == "bf16",
            params_dtype=DTYPES[self.request.params_dtype],
            use_distributed_optimizer=options.use_distributed_optimizer,
            overlap_param_gather=options.overlap_param_gather,
        )
        self.optimizer = get_megatron_optimizer(self.optimizer_config, self.chunks, use_gloo_process_groups=False)
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.config.finalize_model_grads_func = gradient_sync(self.recorder, finalize_model_grads)
        several = len(self.chunks) > 1
        if options.overlap_grad_reduce:
            syncs = [chunk.no_sync for chunk in self.chunks]
            self.config.no_sync_func = syncs if several else syncs[0]
        if options.overlap_param_gather and several:
            self.config.param_sync_func = [chunk.start_param_sync for chunk in self.chunks]

    def _build_data(self) -> None:
        from megatron.core import parallel_state

        training = self.request.training
        self.batches = [
            microbatches(
                seed=training.seed,
                replica=parallel_state.get_data_parallel_rank(),
                vocab_size=int(self.request.model["vocab_size"]),
                seq_length=training.seq_length,
                micro_batch_size=training.micro_batch_size,
                resident_tokens=training.resident_tokens,
            )
            for _ in self.chunks
        ]
        length = training.seq_length
        self.flops = step_flops(
            self.config,
            tokens=training.global_batch_size * length,
            seq_length=length,
            vocab_size=self.request.padded_vocab_size,
        )
        self.positions = torch.arange(length).expand(training.micro_batch_size, -1)
        self.mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu_(diagonal=1)
        if self.rank == 0:
            self.recorder.facts(effective=self._effective())

    def _train(self) -> None:
        last = self.spec.steady_window[1]
        for iteration in range(1, self.request.training.train_iters + 1):
            self.recorder.begin_iteration(iteration)
            started = time.perf_counter()
            losses, updated, grad_norm = self._step()
            loss = self._mean_loss(losses)
            norm = None if grad_norm is None else float(grad_norm)
            nan = any(value is not None and not math.isfinite(value) for value in (loss, norm))
            seconds = time.perf_counter() - started
            self.recorder.end_iteration(
                ms=seconds * 1000,
                loss=loss,
                grad_norm=norm,
                skipped=not updated,
                nan=nan,
                tflops=self.flops / seconds / self.request.world_size / 1e12,
            )
            if self.rank == self.request.world_size - 1:
                print(_line(iteration, self.request.training.train_iters, loss, norm, updated), flush=True)
            if iteration == min(last, self.request.training.train_iters):
                self.recorder.optimizer_state_exists(self._has_state())
                self.recorder.measured()

    def _step(self) -> tuple[list[dict[str, torch.Tensor]], bool, float | None]:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=self.batches if len(self.batches) > 1 else self.batches[0],
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=self.request.num_microbatches,
            seq_length=self.request.training.seq_length,
            micro_batch_size=self.request.training.micro_batch_size,
            forward_only=False,
        )
        with self.recorder.stage(Stage.OPTIMIZER_STEP):
            updated, grad_norm, _ = self.optimizer.step()
        return losses, updated, grad_norm

    def _forward(self, batches: Iterator[Any], model: Any) -> tuple[torch.Tensor, Any]:
        tokens, labels = next(batches)
        # Only multi-token prediction reads a mask, and 0.15.3 does not make one of its own.
        mask = {"loss_mask": torch.ones_like(labels, dtype=torch.float32)} if self.config.mtp_num_layers else {}
        return model(tokens, self.positions, self.mask, labels=labels, **mask), _mean

    def _mean_loss(self, losses: list[dict[str, torch.Tensor]]) -> float | None:
        """The step's loss over all replicas; None on all but the last pipeline stage."""
        from megatron.core import parallel_state

        if not losses:
            return None
        total = torch.stack([item["loss"] for item in losses]).mean()
        torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group())
        replicas: int = parallel_state.get_data_parallel_world_size()
        return float(total) / replicas

    def spoil_gradient(self) -> None:
        """Make one gradient element NaN: one that this rank's optimizer reads, whether it holds a shard or all."""
        from megatron.core import parallel_state

        gradients = self.chunks[0].buffers[0].grad_data
        shard = gradients.numel() // parallel_state.get_data_parallel_world_size()
        gradients[shard * parallel_state.get_data_parallel_rank()] = math.nan

    def _has_state(self) -> bool:
        optimizers = getattr(self.optimizer, "chained_optimizers", [self.optimizer])
        held = [item.optimizer for item in optimizers if getattr(item, "optimizer", None) is not None]
        return bool(held) and all(
            "exp_avg" in item.state.get(parameter, {})
            for item in held
            for group in item.param_groups
            for parameter in group["params"]
        )

    def _effective(self) -> dict[str, Any]:
        request = self.request
        return {
            "model": {
                **as_json(self.config),
                **request.model,
                "padded_vocab_size": request.padded_vocab_size,
            },
            "layers": built_layers(self.chunks),
            "ddp": as_json(self.ddp),
            "optimizer": as_json(self.optimizer_config),
            "train": {
                **as_json(request.training),
                "world_size": request.world_size,
                "data_parallel_size": request.data_parallel,
                "num_microbatches": request.num_microbatches,
            },
            "trainer": {**as_json(request.options), "name": "mcore_cpu"},
        }


def _processor() -> str | None:
    """The processor's name as Linux gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _mean(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"loss": loss.detach().clone()}


def _line(iteration: int, of: int, loss: float | None, norm: float | None, updated: bool) -> str:
    loss_text = "" if loss is None else f" | lm loss: {loss:.6E}"
    norm_text = "" if norm is None else f" | grad norm: {norm:.3f}"
    skipped = int(not updated)
    return f" iteration {iteration:8d}/{of:8d}{loss_text}{norm_text} | number of skipped iterations: {skipped} |"
