"""Logs as they look in the field, written for these tests after public reports: what each shows, and why it is here."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.vocabulary import Cause, Stage

SITE = "/opt/venv/lib/python3.12/site-packages"
MEGATRON = f"{SITE}/megatron/core"
BRIDGE = f"{SITE}/megatron/bridge/training"

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the "
    "allocated memory 75.90 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
WATCHDOG = (
    "[rank{rank}]:[E817 17:40:34.227531918 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=305, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600381 milliseconds before timing out."
)
ITERATION = (
    " [2025-10-22 08:39:{number:02}] iteration {number:8}/      20 | consumed samples: {number:12} | elapsed time "
    "per iteration (ms): 457.2 | lm loss: 1.211290E+01 | loss scale: 1.0 | grad norm: 1.2 | number of skipped "
    "iterations:   0 | number of nan iterations:   0 |"
)


@dataclass(frozen=True)
class Case:
    """A log and what it shows; a stage or rank of None is not asserted."""

    name: str
    text: str
    cause: Cause
    stage: Stage | None = None
    rank: int | None = None


def frames(*places: tuple[str, str] | tuple[str, str, str]) -> str:
    """A traceback's frames: file, function and, where it matters, the line of source."""
    lines = []
    for place in places:
        lines.append(f'  File "{place[0]}", line 100, in {place[1]}')
        if len(place) == 3:
            lines.append(f"    {place[2]}")
    return "\n".join(lines)


def raised(error: str, *places: tuple[str, str] | tuple[str, str, str]) -> str:
    return "\n".join(("Traceback (most recent call last):", frames(*places), error))


def prefixed(prefix: str, text: str) -> str:
    return "\n".join(prefix + line for line in text.splitlines())


def iterations(*numbers: int) -> str:
    return "\n".join(ITERATION.format(number=number) for number in numbers)


TRAIN_STEP = ((f"{BRIDGE}/train.py", "train"), (f"{BRIDGE}/train.py", "train_step"))
SCHEDULE = (f"{MEGATRON}/pipeline_parallel/schedules.py", "forward_backward_no_pipelining")
FORWARD = (*TRAIN_STEP, SCHEDULE, (f"{MEGATRON}/pipeline_parallel/schedules.py", "forward_step"))
LAYER = (f"{MEGATRON}/transformer/transformer_layer.py", "forward")
BACKWARD = (
    *TRAIN_STEP,
    SCHEDULE,
    (f"{MEGATRON}/pipeline_parallel/schedules.py", "backward_step"),
    (f"{MEGATRON}/pipeline_parallel/schedules.py", "custom_backward"),
)
OPTIMIZER = (
    *TRAIN_STEP,
    (f"{MEGATRON}/optimizer/optimizer.py", "step"),
    (f"{MEGATRON}/optimizer/distrib_optimizer.py", "step_with_ready_grads"),
)

OUT_OF_MEMORY = (
    Case(
        "a checkpoint frame in forward is no replay",
        raised(
            OOM,
            *FORWARD,
            (f"{MEGATRON}/transformer/transformer_block.py", "_checkpointed_forward"),
            (f"{MEGATRON}/tensor_parallel/random.py", "checkpoint", "return CheckpointFunction.apply("),
            (f"{SITE}/torch/autograd/function.py", "apply", "return super().apply(*args, **kwargs)"),
            (f"{MEGATRON}/tensor_parallel/random.py", "forward"),
            (f"{MEGATRON}/transformer/transformer_block.py", "custom_forward"),
            LAYER,
        ),
        Cause.DEVICE_OOM,
        Stage.FORWARD,
    ),
    Case(
        "a forward below a checkpoint's backward is replay",
        raised(
            OOM,
            *BACKWARD,
            (f"{SITE}/torch/autograd/function.py", "apply", "return user_fn(self, *args)"),
            (f"{MEGATRON}/tensor_parallel/random.py", "backward", "outputs = ctx.run_function(*detached_inputs)"),
            (f"{MEGATRON}/transformer/transformer_block.py", "custom_forward"),
            LAYER,
        ),
        Cause.DEVICE_OOM,
        Stage.REPLAY,
    ),
    Case(
        "the backward inside a checkpoint's backward is plain backward",
        raised(
            OOM,
            *BACKWARD,
            (f"{MEGATRON}/tensor_parallel/random.py", "backward", "torch.autograd.backward(outputs, args)"),
            (f"{SITE}/torch/autograd/__init__.py", "backward", "_engine_run_backward("),
            (f"{SITE}/torch/autograd/graph.py", "_engine_run_backward"),
        ),
        Cause.DEVICE_OOM,
        Stage.BACKWARD,
    ),
    Case(
        "output-discarding recompute runs in a tensor's hook",
        raised(OOM, *BACKWARD, (f"{MEGATRON}/tensor_parallel/random.py", "_recompute", "outputs = self.run_function(")),
        Cause.DEVICE_OOM,
        Stage.REPLAY,
    ),
    Case(
        "torch's own checkpoint replays in an unpack hook",
        raised(
            OOM,
            ("train.py", "main", "loss.backward()"),
            (f"{SITE}/torch/_tensor.py", "backward"),
            (f"{SITE}/torch/utils/checkpoint.py", "unpack_hook", "frame.recompute_fn(*args)"),
            (f"{SITE}/torch/utils/checkpoint.py", "recompute_fn", "fn(*args, **kwargs)"),
            ("model.py", "forward"),
        ),
        Cause.DEVICE_OOM,
        Stage.REPLAY,
    ),
    Case(
        "a gradient hook in backward is gradient synchronisation",
        raised(
            OOM,
            *BACKWARD,
            (f"{MEGATRON}/distributed/distributed_data_parallel.py", "hook"),
            (f"{MEGATRON}/distributed/param_and_grad_buffer.py", "register_grad_ready"),
            (f"{MEGATRON}/distributed/param_and_grad_buffer.py", "start_grad_sync"),
        ),
        Cause.DEVICE_OOM,
        Stage.GRAD_SYNC,
    ),
    Case(
        "finishing gradients after the schedule is gradient synchronisation",
        raised(
            OOM,
            *TRAIN_STEP,
            SCHEDULE,
            (f"{MEGATRON}/distributed/finalize_model_grads.py", "finalize_model_grads"),
            (f"{MEGATRON}/distributed/finalize_model_grads.py", "_allreduce_layernorm_grads"),
        ),
        Cause.DEVICE_OOM,
        Stage.GRAD_SYNC,
    ),
    Case(
        "the first allocation of state inside the optimizer's step is its initialisation",
        raised(
            OOM,
            *OPTIMIZER,
            (f"{SITE}/torch/optim/adamw.py", "step"),
            (f"{SITE}/torch/optim/adamw.py", "_init_group", "state['exp_avg'] = torch.zeros_like("),
        ),
        Cause.DEVICE_OOM,
        Stage.OPTIMIZER_INIT,
    ),
    Case(
        "the gather of parameters after the step is part of it",
        raised(OOM, *OPTIMIZER, (f"{MEGATRON}/distributed/param_and_grad_buffer.py", "start_param_sync")),
        Cause.DEVICE_OOM,
        Stage.OPTIMIZER_STEP,
    ),
    Case(
        "clipping gradients is part of the optimizer's step",
        raised(OOM, *TRAIN_STEP, (f"{MEGATRON}/optimizer/clip_grads.py", "get_grad_norm_fp32")),
        Cause.DEVICE_OOM,
        Stage.OPTIMIZER_STEP,
    ),
    Case(
        "optimizer frames below a checkpoint being loaded",
        raised(
            OOM,
            (f"{BRIDGE}/setup.py", "setup"),
            (f"{BRIDGE}/checkpointing.py", "load_checkpoint"),
            (f"{MEGATRON}/optimizer/distrib_optimizer.py", "sharded_state_dict"),
            (f"{MEGATRON}/optimizer/distrib_optimizer.py", "_init_optimizer_states_with_dummy_values"),
            (f"{SITE}/torch/optim/adamw.py", "step"),
        ),
        Cause.DEVICE_OOM,
        Stage.CHECKPOINT_LOAD,
    ),
    Case(
        "a forward below evaluation is evaluation",
        raised(OOM, (f"{BRIDGE}/train.py", "train"), (f"{BRIDGE}/eval.py", "evaluate"), *FORWARD[1:], LAYER),
        Cause.DEVICE_OOM,
        Stage.EVALUATE,
    ),
    Case(
        "a forward-only pass is evaluation",
        raised(OOM, ("loop.py", "run", "forward_backward_func(data, forward_only=True)"), SCHEDULE, FORWARD[-1], LAYER),
        Cause.DEVICE_OOM,
        Stage.EVALUATE,
    ),
    Case(
        "capture of graphs outranks the forward inside",
        raised(
            OOM,
            (f"{BRIDGE}/train.py", "train"),
            (f"{MEGATRON}/transformer/cuda_graphs.py", "create_cudagraphs"),
            (f"{SITE}/transformer_engine/pytorch/graph.py", "_make_graphed_callables"),
            LAYER,
        ),
        Cause.DEVICE_OOM,
        Stage.GRAPH_CAPTURE,
    ),
    Case(
        "gradient buffers are allocated while the model is built",
        raised(
            OOM,
            (f"{MEGATRON}/distributed/distributed_data_parallel.py", "__init__"),
            (f"{MEGATRON}/distributed/param_and_grad_buffer.py", "__init__", "self.grad_data = torch.zeros("),
        ),
        Cause.DEVICE_OOM,
        Stage.MODEL_BUILD,
    ),
    Case(
        "a layer being constructed",
        raised(OOM, (f"{MEGATRON}/tensor_parallel/layers.py", "__init__", "self.weight = Parameter(")),
        Cause.DEVICE_OOM,
        Stage.MODEL_BUILD,
    ),
    Case(
        "metrics between steps",
        raised(OOM, (f"{BRIDGE}/train.py", "train"), (f"{BRIDGE}/utils/train_utils.py", "training_log")),
        Cause.DEVICE_OOM,
        Stage.BETWEEN_STEPS,
    ),
    Case(
        "the router and the dispatcher run in forward",
        raised(OOM, *FORWARD, (f"{MEGATRON}/transformer/moe/token_dispatcher.py", "token_dispatch")),
        Cause.DEVICE_OOM,
        Stage.FORWARD,
    ),
    Case(
        "a closure below the optimizer's step trains",
        raised(
            OOM,
            (f"{SITE}/lightning/pytorch/core/module.py", "optimizer_step", "optimizer.step(closure=optimizer_closure)"),
            (f"{SITE}/torch/optim/adam.py", "step", "loss = closure()"),
            (f"{SITE}/lightning/pytorch/strategies/strategy.py", "training_step"),
            ("model.py", "forward"),
        ),
        Cause.DEVICE_OOM,
        Stage.FORWARD,
    ),
    Case(
        "saving while training waits",
        raised(OOM, (f"{BRIDGE}/train.py", "checkpoint_and_decide_exit"), (f"{SITE}/torch/serialization.py", "save")),
        Cause.DEVICE_OOM,
        Stage.CHECKPOINT_SAVE,
    ),
    Case(
        "fragmentation is arithmetic",
        "RuntimeError: CUDA out of memory. Tried to allocate 3.00 GiB (GPU 0; 79.15 GiB total capacity; 58.80 GiB "
        "already allocated; 1.10 GiB free; 76.00 GiB reserved in total by PyTorch) If reserved memory is >> "
        "allocated memory try setting max_split_size_mb to avoid fragmentation.",
        Cause.FRAGMENTATION,
    ),
    Case("the advice about fragmentation is boilerplate", OOM, Cause.DEVICE_OOM),
    Case(
        "another process listed",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
        "79.15 GiB of which 512.00 MiB is free. Process 4242 has 40.00 GiB memory in use. Process 4243 has 38.60 GiB "
        "memory in use. Of the allocated memory 37.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by "
        "PyTorch but unallocated.",
        Cause.SHARED_GPU,
    ),
    Case(
        "another process hidden by a container",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.15 "
        "GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 20.00 GiB memory in use. Of "
        "the allocated memory 18.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but "
        "unallocated.",
        Cause.SHARED_GPU,
    ),
    Case(
        "somebody else's memory in torch 1",
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.65 GiB total capacity; 2.30 GiB "
        "already allocated; 15.56 MiB free; 2.40 GiB reserved in total by PyTorch)",
        Cause.SHARED_GPU,
    ),
    Case(
        "a bare context of a neighbour is not somebody else's memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 "
        "GiB of which 700.00 MiB is free. Process 77 has 518.00 MiB memory in use. Including non-PyTorch memory, "
        "this process has 77.90 GiB memory in use. Of the allocated memory 75.90 GiB is allocated by PyTorch, and "
        "500.00 MiB is reserved by PyTorch but unallocated.",
        Cause.DEVICE_OOM,
    ),
    Case(
        "a limit of our own with the device nearly empty",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 MiB. GPU 0 has a total capacity of "
        "139.80 GiB of which 60.00 GiB is free. Process 99 has 60.00 GiB memory in use. Including non-PyTorch "
        "memory, this process has 19.76 GiB memory in use. 18.63 GiB allowed; Of the allocated memory 18.53 GiB is "
        "allocated by PyTorch, and 85.80 MiB is reserved by PyTorch but unallocated.",
        Cause.DEVICE_OOM,
    ),
    Case("the driver's word", raised("RuntimeError: CUDA error: out of memory", *FORWARD, LAYER), Cause.DEVICE_OOM),
    Case(
        "the driver's word before anything of ours was there",
        raised("RuntimeError: CUDA error: out of memory", (f"{SITE}/torch/distributed/c10d.py", "init_process_group")),
        Cause.SHARED_GPU,
        Stage.DISTRIBUTED_INIT,
    ),
    Case(
        "the asynchronous allocator prints its numbers on lines of their own",
        prefixed(
            "[rank1]: ",
            "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of "
            "memory)\nCurrently allocated     : 20.00 GiB\nRequested               : 2.00 GiB\nDevice limit : 79.15 GiB"
            "\nFree (according to CUDA): 512.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n  "
            "                      : 17179869184.00 GiB",
        ),
        Cause.DEVICE_OOM,
        None,
        1,
    ),
    Case("an accelerator error", "torch.AcceleratorError: CUDA error: out of memory", Cause.DEVICE_OOM),
    Case(
        "an old torch",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
        Cause.DEVICE_OOM,
    ),
    Case(
        "Transformer Engine",
        "RuntimeError: /te/common/util/cuda_driver.cpp:30 in function cuda_call: CUDA Error: out of memory",
        Cause.DEVICE_OOM,
    ),
    Case(
        "a communication library",
        "RuntimeError: Failed: CUDA error /deep_ep/csrc/deep_ep.cpp:103 'out of memory'",
        Cause.DEVICE_OOM,
    ),
    Case(
        "NCCL found the device full",
        "node01:4604:5083 [0] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'\n"
        "node01:4604:5083 [0] include/alloc.h:206 NCCL WARN Failed to CUDA calloc async 24 bytes",
        Cause.NCCL_OOM,
    ),
    Case(
        "NCCL's last error is the cause behind torch's",
        raised(
            "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp, unhandled cuda error, NCCL "
            "2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'",
            *TRAIN_STEP,
            (f"{MEGATRON}/distributed/param_and_grad_buffer.py", "start_grad_sync"),
        ),
        Cause.NCCL_OOM,
        Stage.GRAD_SYNC,
    ),
    Case(
        "a timeout of the other ranks is the cascade of one rank's full device",
        f"{WATCHDOG.format(rank=0)}\n{prefixed('[rank3]: ', raised(OOM, *BACKWARD))}\n{WATCHDOG.format(rank=1)}",
        Cause.DEVICE_OOM,
        Stage.BACKWARD,
        3,
    ),
    Case(
        "the job's time limit after a full device",
        f"[rank2]: {OOM}\nslurmstepd: error: *** STEP 42.0 ON node01 CANCELLED AT 2025-12-03T14 DUE TO TIME LIMIT ***",
        Cause.DEVICE_OOM,
        None,
        2,
    ),
    Case(
        "srun ends with an out-of-memory exit of the GPU kind",
        f"{prefixed('5: ', raised(OOM, *FORWARD, LAYER))}\nsrun: error: node02: task 5: Exited with exit code 1\n"
        "slurmstepd: error: *** STEP 9.0 ON node01 CANCELLED AT 2025-12-03T14:53:02 ***",
        Cause.DEVICE_OOM,
        Stage.FORWARD,
        5,
    ),
    Case(
        "a traceback as rich draws it",
        "╭───────────── Traceback (most recent call last) ─────────────╮\n"
        f"│ {SITE}/deepspeed/runtime/engine.py:330 │\n│ in __init__ │\n│ ❱ 330 │   self._configure_optimizer() │\n"
        f"│ {SITE}/deepspeed/runtime/zero/stage3.py:357 in initialize_optimizer_states │\n│ ❱ 357 │   step() │\n"
        f"╰──────────────────────────────╯\n{OOM.removeprefix('torch.')}",
        Cause.DEVICE_OOM,
        Stage.OPTIMIZER_INIT,
    ),
    Case(
        "a traceback as notebooks print it",
        f"File {SITE}/megatron/core/optimizer/clip_grads.py:118, in clip_grad_norm(parameters, max_norm)\n"
        f"    117 x\n--> 118 y\n\n{OOM}",
        Cause.DEVICE_OOM,
        Stage.OPTIMIZER_STEP,
    ),
    Case(
        "a traceback that begins behind a progress bar",
        "  0%|          | 0/247 [00:00<?, ?it/s]" + prefixed("[rank2]: ", raised(OOM, *BACKWARD)),
        Cause.DEVICE_OOM,
        Stage.BACKWARD,
        2,
    ),
    Case(
        "a traceback whose every line a logger wrapped",
        prefixed("2023-09-14 21:27:58.000 [INFO] [Driver] ", raised(OOM, *OPTIMIZER)),
        Cause.DEVICE_OOM,
        Stage.OPTIMIZER_STEP,
    ),
    Case(
        "ray wraps it",
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::TrainActor.train() (pid=1, ip=10.0.0.1)",
        Cause.DEVICE_OOM,
    ),
)

HEALTH = (
    Case("nothing wrong", iterations(*range(1, 21)), Cause.NONE),
    Case(
        "zero nan iterations are health",
        f"{iterations(1, 2)}\n[after training is done] datetime: 2025-12-03",
        Cause.NONE,
    ),
    Case(
        "names and arguments that contain the word",
        "  oom_recovery .................................... retry\n  on_out_of_memory ................ fail\n"
        "+ python pretrain.py --on-cuda-oom=retry --name bloom-oom\nloading model bloom-560m\n" + iterations(1, 2, 3),
        Cause.NONE,
    ),
    Case(
        "a caught failure that training survived",
        f"{iterations(1, 2)}\n{raised(OOM, *FORWARD, LAYER)}\n{iterations(3, 4, 5)}",
        Cause.NONE,
    ),
    Case(
        "source code that names it",
        'except RuntimeError as e:\n  if "out of memory" in str(e):\n    raise RuntimeError("CUDA out of memory")\n'
        + iterations(1, 2),
        Cause.NONE,
    ),
    Case(
        "a warning that names it",
        f"WARNING: CUDA out of memory while merging tensors, switching to CPU\n{iterations(1, 2)}",
        Cause.NONE,
    ),
    Case(
        "warnings that every healthy log has",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node01]:29500 (errno: 97 - Address "
        "family not supported by protocol).\nWARNING: could not import apex: No module named 'apex', ImportError "
        "ignored\n[rank0]:[W1129 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not "
        "called before "
        f"program exit\n{iterations(1, 2, 3)}",
        Cause.NONE,
    ),
    Case(
        "an exception that Python ignores when it ends",
        f"{iterations(19, 20)}\n[after training is done]\nException ignored in: <function Pool.__del__ at 0x7f>\n"
        + raised("AttributeError: 'NoneType' object has no attribute 'dumps'", ("pool.py", "__del__")),
        Cause.NONE,
    ),
)

OTHERS = (
    Case(
        "too many registers or too much shared memory",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: "
        "101376.",
        Cause.KERNEL_RESOURCES,
    ),
    Case(
        "launch resources", "RuntimeError: CUDA error: too many resources requested for launch", Cause.KERNEL_RESOURCES
    ),
    Case(
        "an index error that prints cuBLAS's allocation failure",
        "../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [12,0,0], thread: [0,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.\n"
        + raised(
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", *FORWARD, LAYER
        ),
        Cause.ILLEGAL_ACCESS,
        Stage.FORWARD,
    ),
    Case(
        "cuBLAS fails because the device is full",
        raised("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", *FORWARD)
        + f"\n[rank1]: {OOM}",
        Cause.DEVICE_OOM,
    ),
    Case(
        "an illegal access seen by the watchdog",
        "[rank3]:[E817 17:40:34.2 ProcessGroupNCCL.cpp:1515] [PG 0 Rank 3] Process group watchdog thread terminated "
        "with exception: CUDA error: an illegal memory access was encountered",
        Cause.ILLEGAL_ACCESS,
        None,
        3,
    ),
    Case("an exit code of a container", "srun: error: node01: task 2: Exited with exit code 137", Cause.CRASH, None, 2),
    Case("a compiler of kernels", "RuntimeError: Triton Error [CUDA]: out of memory", Cause.DEVICE_OOM),
    Case("a device-side assertion", "RuntimeError: CUDA error: device-side assert triggered", Cause.ILLEGAL_ACCESS),
    Case(
        "a GPU off the bus",
        "[7488.6] NVRM: Xid (PCI:0000:02:00): 79, pid=1, GPU has fallen off the bus.",
        Cause.HARDWARE,
    ),
    Case(
        "an uncorrectable error behind an illegal access",
        "NVRM: Xid (PCI:0000:3b:00): 94, pid=99, Contained: SM\n"
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        Cause.HARDWARE,
    ),
    Case("an Xid that programs cause", "NVRM: Xid (PCI:0000:3b:00): 31, pid=9, MMU Fault", Cause.ILLEGAL_ACCESS),
    Case(
        "the kernel's OOM killer",
        "[12.3] Memory cgroup out of memory: Killed process 4242 (python) total-vm:123kB, anon-rss:12kB",
        Cause.HOST_OOM,
    ),
    Case(
        "host memory by exit code of a container",
        "State: Terminated, Reason: OOMKilled, Exit Code: 137",
        Cause.HOST_OOM,
    ),
    Case(
        "SIGKILL alone proves little",
        "torch/distributed/elastic/api.py:874] failed (exitcode: -9) local_rank: 0",
        Cause.CRASH,
    ),
    Case(
        "SIGKILL by another launcher",
        "[ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -9",
        Cause.CRASH,
    ),
    Case(
        "a rendezvous that never came about",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: k "
        "(world_size=8)",
        Cause.COMMUNICATION,
        Stage.DISTRIBUTED_INIT,
        0,
    ),
    Case(
        "a worker's shared memory",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        Cause.HOST_OOM,
    ),
    Case(
        "NCCL's shared memory",
        "node01:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes, "
        "error: No space left on device (28)",
        Cause.HOST_OOM,
    ),
    Case(
        "a disk that is full",
        raised("OSError: [Errno 28] No space left on device", (f"{BRIDGE}/checkpointing.py", "save_checkpoint")),
        Cause.STORAGE,
        Stage.CHECKPOINT_SAVE,
    ),
    Case("a quota", "OSError: [Errno 122] Disk quota exceeded: '/scratch/ckpt'", Cause.STORAGE),
    Case(
        "a module that is absent",
        raised(
            "ModuleNotFoundError: No module named 'transformer_engine'", ("pretrain_gpt.py", "<module>", "import x")
        ),
        Cause.IMPORT_ERROR,
        Stage.STARTUP,
    ),
    Case(
        "a library of another release",
        "ImportError: /opt/flash_attn.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        Cause.IMPORT_ERROR,
    ),
    Case(
        "an argument that does not exist",
        "pretrain_gpt.py: error: unrecognized arguments: --recompute-modulez moe",
        Cause.INVALID_CONFIG,
        Stage.VALIDATE,
    ),
    Case(
        "an assertion of the configuration",
        raised(
            "AssertionError: moe recompute is incompatible with overlap",
            (f"{MEGATRON}/transformer/transformer_config.py", "__post_init__"),
        ),
        Cause.INVALID_CONFIG,
        Stage.VALIDATE,
    ),
    Case("a world that does not divide", "RuntimeError: world_size (6) is not divisible by 4", Cause.INVALID_CONFIG),
    Case(
        "a missing struct key",
        "omegaconf.errors.ConfigAttributeError: Key 'foo' is not in struct",
        Cause.INVALID_CONFIG,
    ),
    Case(
        "a driver too old for the image",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        Cause.LAUNCH,
    ),
    Case(
        "a container that does not start", "slurmstepd: error: pyxis: child 77 failed with error code: 1", Cause.LAUNCH
    ),
    Case(
        "a program that is not there", "slurmstepd: error: execve(): python3: No such file or directory", Cause.LAUNCH
    ),
    Case(
        "an account that is refused",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
        Cause.SUBMISSION,
    ),
    Case("a node that failed", "srun: error: Node failure on node07", Cause.NODE_FAILURE),
    Case(
        "a node that failed makes others lose connections",
        "[rank3]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:3456\n"
        "srun: error: Node failure on node07",
        Cause.NODE_FAILURE,
    ),
    Case(
        "preemption",
        "slurmstepd: error: *** JOB 3 ON node01 CANCELLED AT 2021-06-18T13:05:36 DUE TO PREEMPTION ***",
        Cause.PREEMPTED,
    ),
    Case(
        "cancelled by its user",
        "slurmstepd: error: *** JOB 3 ON node01 CANCELLED AT 2021-06-18T13:05:36 ***\nsrun: Job step aborted: Waiting "
        "up to 32 seconds for job step to finish.",
        Cause.CANCELLED,
    ),
    Case(
        "a network error",
        "node01:1:2 [0] NET/IB : Got completion from peer 10.0.0.2<1234> with status=12 opcode=0 len=0 vendor err "
        "129\ntorch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, remote process exited "
        "or there was a network error, NCCL version 2.19.3",
        Cause.COMMUNICATION,
    ),
    Case("a hang", "\n".join(WATCHDOG.format(rank=rank) for rank in range(4)), Cause.HANG),
    Case(
        "a hang in which somebody then lost a connection",
        f"[rank0]: RuntimeError: Connection closed by peer [10.0.0.1]:1\n{WATCHDOG.format(rank=1)}",
        Cause.HANG,
    ),
    Case(
        "a job that was killed after its last step",
        f"{iterations(19, 20)}\n[after training is done] datetime: 2025-12-03 14:45:03\n"
        "slurmstepd: error: *** STEP 42.2 ON node01 CANCELLED AT 2025-12-03T14:53:02 DUE TO TIME LIMIT ***",
        Cause.TIME_LIMIT,
        Stage.TEARDOWN,
    ),
    Case(
        "losses that are no numbers",
        iterations(1, 2)
        .replace("lm loss: 1.211290E+01", "lm loss: NAN")
        .replace("nan iterations:   0", "nan iterations:   1"),
        Cause.NON_FINITE,
    ),
    Case(
        "a check of gradients",
        "AssertionError: Rank 3: found NaN in local grad norm for bucket #0 in backward pass before data-parallel "
        "communication collective. Device: 3, node: node01",
        Cause.NON_FINITE,
        Stage.GRAD_SYNC,
        3,
    ),
    Case(
        "a segmentation fault, frames innermost first",
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        + frames(
            (f"{SITE}/torch/autograd/graph.py", "_engine_run_backward"),
            ("train.py", "train_step"),
            ("train.py", "main"),
        ),
        Cause.CRASH,
        Stage.BACKWARD,
    ),
    Case(
        "only the launcher's summary",
        "W0604 21:12:07.358000 7275 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 7334 "
        "closing signal SIGTERM\nE0604 21:12:50.464000 7275 torch/distributed/elastic/multiprocessing/api.py:869] "
        "failed (exitcode: 1) local_rank: 0 (pid: 7331) of binary: /opt/venv/bin/python3.10",
        Cause.CASCADE,
    ),
    Case(
        "an exception that no rule knows",
        raised("RuntimeError: The size of tensor a (4096) must match the size of tensor b (2048)", *FORWARD, LAYER)
        + "\n[rank1]: RuntimeError: Connection closed by peer [10.0.0.1]:1",
        Cause.UNKNOWN,
        Stage.FORWARD,
    ),
    Case(
        "data that is absent",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/pile_document.idx'",
        Cause.DATA,
    ),
    Case(
        "a size that no tensor has",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        Cause.UNKNOWN,
    ),
    Case(
        "memory pinned on the host",
        raised(
            "torch.AcceleratorError: CUDA error: out of memory", ("offload.py", "offload", "x = x.cpu().pin_memory()")
        ),
        Cause.HOST_OOM,
    ),
    Case(
        "a traceback behind a collector's arrows, while saving",
        "2026-01-09 17:40:26.04 master-0 >> saving checkpoint at iteration   10000 to /results in torch_dist format\n"
        + prefixed("2026-01-09 17:40:31.16 master-0 >> [rank7]: ", raised("", ("/opt/sft.py", "<module>", "main()"))),
        Cause.UNKNOWN,
        Stage.CHECKPOINT_SAVE,
        rank=7,
    ),
    Case(
        "a box whose paths are broken in two",
        "│ e-packages/deepspeed/runtime/zero/stage_1_and_2.py:485 in __init__           │\n"
        "│ ❱  485 │   │   self.initialize_optimizer_states()                            │\n"
        "│ /mnt/shared/environments/training/envs/ds/lib/python3.8/sit                  │\n"
        "│ e-packages/deepspeed/runtime/zero/stage_1_and_2.py:611 in                    │\n"
        "│ initialize_optimizer_states                                                  │\n",
        Cause.UNKNOWN,
        Stage.OPTIMIZER_INIT,
    ),
    Case(
        "a capture that was refused inside a forward",
        raised(
            "RuntimeError: CUDA error: operation not permitted when stream is capturing",
            ("/opt/model.py", "forward", "return self.mixer(x)"),
        ),
        Cause.UNKNOWN,
        Stage.GRAPH_CAPTURE,
    ),
    Case(
        "work that a capture left unjoined",
        "Exception: Capture cuda graph failed: CUDA error: capturing stream has unjoined work",
        Cause.UNKNOWN,
        Stage.GRAPH_CAPTURE,
    ),
    Case(
        "a traceback after a validation that ended",
        "Train:   8%|▊         | 40/500 [15:18<2:32:54, 19.94s/it]\n"
        "Val: 100%|██████████| 20/20 [00:22<00:00,  1.12s/it]\n" + raised("", ("/opt/train.py", "main", "run(args)")),
        Cause.UNKNOWN,
        Stage.UNKNOWN,
    ),
    Case(
        "a model moved after its checkpoint was read",
        "Loading checkpoint shards: 100%|██████████| 7/7 [00:08<00:00,  1.22s/it]\n"
        + raised(
            "RuntimeError: CUDA error: out of memory", ("/opt/tune.py", "main", 'model = get_model(base).to("cuda:1")')
        ),
        Cause.DEVICE_OOM,
        Stage.MODEL_BUILD,
    ),
    Case(
        "a chain of calls instead of frames",
        "train_step\n  -> forward_backward_no_pipelining\n  -> backward_step\n  -> custom_backward\n"
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        Cause.ILLEGAL_ACCESS,
        Stage.BACKWARD,
    ),
    Case(
        "frames of an actor that names its rank in brackets",
        prefixed(
            "(MegatronPolicyWorker[rank=8] pid=3294, ip=10.0.0.9) ",
            '  File "/opt/megatron/core/transformer/moe/moe_layer.py", line 701 in forward\n'
            '  File "/opt/venv/torch/nn/modules/module.py", line 1790 in _call_impl',
        ),
        Cause.UNKNOWN,
        Stage.FORWARD,
        rank=8,
    ),
    Case(
        "gradients that DeepSpeed and DDP reduce inside backward",
        raised(
            "",
            ("torch/autograd/__init__.py", "backward"),
            ("deepspeed/runtime/zero/stage3.py", "reduce_partition_and_remove_grads"),
        ),
        Cause.UNKNOWN,
        Stage.GRAD_SYNC,
    ),
    Case(
        "a traceback whose line breaks became blanks",
        '[rank2]: File "/opt/train.py", line 7, in fit loss.backward() File "/opt/torch/_tensor.py", line 62, in '
        "backward torch.autograd.backward( RuntimeError: CUDA error: an illegal memory access was encountered",
        Cause.ILLEGAL_ACCESS,
        Stage.BACKWARD,
        rank=2,
    ),
    Case(
        "ranks behind blanks",
        prefixed("    [rank3]: ", raised("", ("/opt/training.py", "build_train_valid_test_data_loaders"))),
        Cause.UNKNOWN,
        Stage.DATA_BUILD,
        rank=3,
    ),
    Case(
        "an actor that names its rank among others",
        prefixed("(worker6, rank=6, pid=89, ip=10.0.0.2) ", raised("", ("/opt/core/datasets/gpt_dataset.py", "get"))),
        Cause.UNKNOWN,
        Stage.DATA_BUILD,
        rank=6,
    ),
    Case(
        "a kill behind the bar of a load",
        "Loading checkpoint shards:  57% 4/7 [00:37<00:28,  9.42s/it]ERROR:torch.distributed.elastic.api:"
        "failed (exitcode: -9) local_rank: 0 (pid: 81) of binary: /usr/bin/python3",
        Cause.CRASH,
        Stage.CHECKPOINT_LOAD,
    ),
)

CASES = (*OUT_OF_MEMORY, *HEALTH, *OTHERS)

LINES = (
    (
        Cause.COMMUNICATION,
        "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
        "via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",
    ),
    (
        Cause.COMMUNICATION,
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 4/8 clients joined.",
    ),
    (
        Cause.HANG,
        "[rank3]: RuntimeError: NCCL communicator was aborted on rank 3.  Original reason for "
        "failure was: [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1804406 milliseconds before "
        "timing out.",
    ),
    (
        Cause.LAUNCH,
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x, invalid usage, NCCL "
        "version 2.19.3\n[rank0]: ncclInvalidUsage: This usually reflects invalid usage of NCCL "
        "library.\n[rank0]: Last error:\n[rank0]: Duplicate GPU detected : rank 0 and rank 1 both "
        "on CUDA device 1000",
    ),
    (Cause.GPU_LIBRARY, "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    (
        Cause.NON_FINITE,
        "ValueError: Rank 0, node n, device 0, iteration 1201: Unexpected result inf "
        "(message='found Inf in local grad norm for bucket #1 in backward pass before "
        "data-parallel communication collective')",
    ),
    (Cause.CRASH, "/usr/bin/bash: line 1: 12345 Killed                  python train.py"),
    (
        Cause.NODE_FAILURE,
        "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***",
    ),
    (Cause.LAUNCH, "srun: error: Unable to create step for job 1234: Memory required by task is not available"),
    (Cause.STORAGE, "OSError: [Errno 116] Stale file handle"),
    (
        Cause.DATA,
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't "
        "find it in the cached files",
    ),
    (Cause.LAUNCH, "nvrtc: error: invalid value for --gpu-architecture (-arch)"),
    (
        Cause.CASCADE,
        "============================================================\npretrain_gpt.py "
        "FAILED\n------------------------------------------------------------\nFailures:\n  "
        "<NO_OTHER_FAILURES>\n------------------------------------------------------------\nRoot "
        "Cause (first observed failure):\n[0]:\n  time      : 2024-05-17_08:24:08\n  host      : "
        "node1\n  rank      : 5 (local_rank: 5)\n  exitcode  : 1 (pid: 970611)\n  error_file: "
        "<N/A>\n  traceback : To enable traceback see: "
        "https://pytorch.org/docs/stable/elastic/errors.html",
    ),
    (
        Cause.CRASH,
        "Root Cause (first observed failure):\n[0]:\n  time      : 2024-05-17_08:24:08\n  rank      "
        ": 5 (local_rank: 5)\n  exitcode  : -11 (pid: 970611)\n  error_file: <N/A>\n  traceback : "
        "Signal 11 (SIGSEGV) received by PID 970611",
    ),
    (Cause.CRASH, "  traceback : Signal 6 (SIGABRT) received by PID 970611"),
    (Cause.INVALID_CONFIG, "pretrain_gpt.py: error: argument --bf16: not allowed with argument --fp16"),
    (Cause.COMMUNICATION, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
    (Cause.LAUNCH, "Failed to initialize NVML: Driver/library version mismatch"),
    (
        Cause.HARDWARE,
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
        "functions before calling NumCudaDevices() that might have already set an error? Error "
        "802: system not yet initialized",
    ),
    (
        Cause.LAUNCH,
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: "
        "cannot open shared object file: no such file or directory: unknown",
    ),
    (
        Cause.INVALID_CONFIG,
        'Traceback (most recent call last):\n  File "/opt/megatron/core/parallel_state.py", line '
        "10, in initialize_model_parallel\nRuntimeError: world_size (8) is not divisible by 16",
    ),
    (Cause.HOST_OOM, "OSError: [Errno 12] Cannot allocate memory"),
    (
        Cause.HOST_OOM,
        "RuntimeError: unable to open shared memory object </torch_123_456> in read-write mode: "
        "No space left on device (28)",
    ),
    (
        Cause.HOST_OOM,
        "RuntimeError: CUDA error: OS call failed or operation not supported on this OS ... cudaHostAlloc failed",
    ),
    (
        Cause.HANG,
        "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 0] Heartbeat monitor timed out! "
        "Process will be terminated after dumping debug info.",
    ),
    (
        Cause.HARDWARE,
        "node-3 kernel: NVRM: Xid (PCI:0000:9b:00): 63, pid='<unknown>', name=<unknown>, Row "
        "Remapper: New row marked for remapping",
    ),
    (
        Cause.HARDWARE,
        "RuntimeError: CUDA error: unspecified launch failure\nnode-3 kernel: NVRM: Xid "
        "(PCI:0000:9b:00): 48, pid=1, Double Bit ECC Error",
    ),
    (
        Cause.KERNEL_RESOURCES,
        "triton.compiler.errors.CompilationError: ptxas error   : Entry function 'k' uses too "
        "much shared data (0x1c000 bytes, 0xc000 max)",
    ),
    (
        Cause.IMPORT_ERROR,
        "ImportError: cannot import name 'TELinear' from 'megatron.core.extensions.transformer_engine' (/opt/x.py)",
    ),
    (
        Cause.IMPORT_ERROR,
        "RuntimeError: Triton >= 3.4.0 and < 3.7.1 on Hopper GPUs produces incorrect results for gated "
        "chunk_bwd_dqkwg (see #640). Please upgrade Triton to >= 3.7.1 or install tilelang: `pip install tilelang`",
    ),
    (Cause.IMPORT_ERROR, "AssertionError: flash-linear-attention is not installed. Please run `pip install fla-core`"),
    (Cause.IMPORT_ERROR, "RuntimeError: Please update Transformer Engine, version 2.3 or newer is wanted"),
    (
        Cause.IMPORT_ERROR,
        "RuntimeError: Please update the TransformerEngine to version>=1.7.0 and use TEGroupedMLP.",
    ),
    (
        Cause.IMPORT_ERROR,
        "AssertionError: Transformer Engine version 2.3.0 is too old, Megatron-Core requires TransformerEngine >= 2.9",
    ),
    (Cause.IMPORT_ERROR, "[rank3]: ValueError: Please downgrade to transformers<5, or wait for the next release"),
    (
        Cause.CRASH,
        "[modelopt] Error: bitsandbytes is not installed. Please install it for NF4\n"
        "Fatal Python error: Segmentation fault",
    ),
    (
        Cause.COMMUNICATION,
        "NCCL WARN Error: please upgrade rdma-core to version 45 or newer\n"
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2, unhandled system error",
    ),
    (
        Cause.LAUNCH,
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update it.",
    ),
    (Cause.IMPORT_ERROR, "OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory"),
    (Cause.PREEMPTED, "2024-03-01 10:00:00 job 123 was preempted by job 456"),
    (
        Cause.PREEMPTED,
        "slurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION "
        "***\n[rank1]: RuntimeError: Connection reset by peer",
    ),
    (Cause.TIME_LIMIT, "=>> PBS: job killed: walltime 3610 exceeded limit 3600"),
    (Cause.CANCELLED, 'Traceback (most recent call last):\n  File "train.py", line 3, in main\nKeyboardInterrupt'),
    (Cause.CANCELLED, "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024-01-01T00:00:00 ***"),
    (Cause.CANCELLED, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 2973 got signal: 15"),
    (
        Cause.NONE,
        "validation loss at iteration 100 | lm loss value: 2.1\n iteration 101/ 200 | lm loss: 1\n "
        "iteration 102/ 200 | lm loss: 1",
    ),
    (
        Cause.NON_FINITE,
        " iteration       12/      20 | lm loss: nan | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |",
    ),
    (Cause.NON_FINITE, "RuntimeError: Loss is NaN at step 12"),
    (Cause.DEVICE_OOM, "[rank1]: RuntimeError: NVSHMEM: cudaMalloc failed: out of memory"),
    (Cause.DEVICE_OOM, "E1031 20:18:27.319586 164386 x.cc:1] CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    (Cause.NCCL_OOM, "node1:1:2 [3] transport.cc:1 NCCL WARN Cuda failure 'out of memory'"),
    (
        Cause.DEVICE_OOM,
        "RuntimeError: XPU out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity "
        "of 64.00 GiB of which 1 GiB is free.",
    ),
    (Cause.STORAGE, "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 5574656 vs 5574544"),
    (Cause.STORAGE, "OSError: [Errno 28] No space left on device: '/ckpt/iter_100'"),
    (Cause.DATA, "ValueError: One or both of the .idx and .bin files cannot be found at the path prefix"),
    (
        Cause.UNKNOWN,
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    ),
    (
        Cause.SUBMISSION,
        "sbatch: error: QOSMaxGRESPerUser\nsbatch: error: Batch job submission failed: Job "
        "violates accounting/QOS policy",
    ),
    (
        Cause.LAUNCH,
        "slurmstepd: error: pyxis: [ERROR] Could not process JSON input\nslurmstepd: error: "
        "pyxis: couldn't start container",
    ),
    (Cause.LAUNCH, "docker: Error response from daemon: manifest unknown"),
    (Cause.CANCELLED, "slurmstepd: *** JOB 101 CANCELLED AT 2016-01-01T00:00:00 *** on node-3"),
    (Cause.TIME_LIMIT, "slurmstepd: *** JOB 101 CANCELLED AT 2016-01-01T00:00:00 DUE TO TIME LIMIT *** on node-3"),
    (Cause.TIME_LIMIT, "Job not requeued because: timed-out and not checkpointable"),
    (Cause.HOST_OOM, "[node-3:77 :0:78] Caught signal 7 (Bus error: nonexistent physical address)"),
    (Cause.CRASH, "[node-3:77 :0:78] Caught signal 8 (Floating point exception: integer divide by zero)"),
    (Cause.CRASH, "ERROR:launcher:Rank 2 crashed with exit code -11"),
    (Cause.CRASH, "ERROR:launcher:Rank 2 crashed with exit code -6"),
    (Cause.CRASH, "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task."),
    (Cause.DATA, "AssertionError: last epoch number of samples exceeded max value."),
    (
        Cause.HANG,
        "[rank0]:[E ProcessGroupNCCL.cpp:1] Exception (either an error or timeout) detected by watchdog at 12",
    ),
    (
        Cause.COMMUNICATION,
        "[rank0]:[E ProcessGroupNCCL.cpp:1] Exception (either an error or timeout) detected by watchdog at work: 12\n"
        "[rank0]: ncclRemoteError: A call failed possibly due to a network error.",
    ),
    (
        Cause.HANG,
        "[rank7]:[F ProcessGroupNCCL.cpp:9] [PG 0 Rank 7] ProcessGroupNCCL's watchdog got stuck for 600 seconds "
        "without making progress.\nW0216 13:04:08.1 77 torch/distributed/elastic/api.py:9] Sending process 8 closing "
        "signal SIGTERM",
    ),
    (Cause.GPU_LIBRARY, "RuntimeError: /opt/te/logging.h:38 in function check_cublas_: CUBLAS Error: not supported"),
    (Cause.ILLEGAL_ACCESS, "THCudaCheck FAIL file=/opt/THC/THCTensorCopy.cu line=84 error=74 : misaligned address"),
    (
        Cause.ILLEGAL_ACCESS,
        "RuntimeError: cuda runtime error (77) : an illegal memory access was encountered at /x.cu:3",
    ),
    (Cause.ILLEGAL_ACCESS, '{"data": "[rank1]: torch.AcceleratorError: HIP error: unspecified launch failure\\\\n"}'),
    (
        Cause.HOST_OOM,
        'Traceback (most recent call last):\n  File "/opt/train.py", line 9, in load\n'
        "srun: error: node-3: task 0: Out Of Memory",
    ),
    (Cause.DEVICE_OOM, f"node-3 kernel: NVRM: Xid (PCI:0000:9b:00): 63, pid=1, Row Remapper: New row\n{OOM}"),
    (
        Cause.HOST_OOM,
        "Memory on the node (IP: 10.0.0.4, ID: ba65) where the task (name=head, pid=45) was running was 1911.31GB / "
        "2000.00GB (0.9556), which exceeds the memory usage threshold of 0.95. Ray killed this worker",
    ),
    (
        Cause.HOST_OOM,
        "Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/ray-oom-prevention. "
        "Consider reducing task parallelism. Set max_task_retries to enable retry when the task crashes due to OOM.",
    ),
    (Cause.COMMUNICATION, "RuntimeError: HCCL function error: hcclCommInitRootInfoConfig(numRanks), error code is 7"),
    (Cause.ILLEGAL_ACCESS, "CUDA Exception: Warp Illegal Address"),
    (Cause.DATA, "Dataset does not exist: /data/pile/part-01\nPath should be a basename of .idx and .bin"),
)
"""Short texts, each with its cause."""
