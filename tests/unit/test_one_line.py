"""One line is often all that a log has: messages as programs word them, and lines that only sound like one."""

from __future__ import annotations

import pytest

from orchestrator.outcome.log import judge, read_text
from orchestrator.vocabulary import Cause
from orchestrator.vocabulary.causes import OOM_CAUSES

LINES = {
    Cause.DEVICE_OOM: (
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
        "RuntimeError: HIP out of memory. Tried to allocate 256.00 MiB (GPU 0; 15.98 GiB total capacity)",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1717 bytes.",
        "RuntimeError: [enforce fail at CUDAContext.cpp] cudaMalloc(&ptr, size) failed: out of memory",
        "terminate called after throwing an instance of 'c10::OutOfMemoryError'",
        "CUDA Error: out of memory (2)",
        "RuntimeError: CUDA driver error: out of memory",
    ),
    Cause.NCCL_OOM: (
        "node01:100:200 [0] include/alloc.h:125 NCCL WARN Failed to CUDA malloc 4194304 bytes",
        "node01:1:2 [3] transport/nvls.cc:169 NCCL WARN Cuda failure 2 'out of memory'",
    ),
    Cause.GPU_LIBRARY: (
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "RuntimeError: cuDNN Error: [cudnn_frontend] Error: No execution plans support the graph",
        "RuntimeError: GET was unable to find an engine to execute this computation",
        "RuntimeError: gemm_cublaslt failed: the library was not initialized",
    ),
    Cause.ILLEGAL_ACCESS: (
        "RuntimeError: CUDA error: misaligned address",
        "RuntimeError: /build/csrc/gemm.cu:55 in function run: CUDA Error: unspecified launch failure",
        "torch.AcceleratorError: CUDA error: an illegal instruction was encountered",
    ),
    Cause.HARDWARE: (
        "failed to get device remapped rows: ERROR_GPU_IS_LOST",
        "NVRM: Xid (PCI:0000:4e:00): 94, pid=1234, name=python, Contained: SM (0x1). RST: No, D-RST: No",
        "NVRM: GPU 0000:81:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
        "Failed to initialize NVML: GPU is lost",
        "CUDA error: uncorrectable NVLink error detected during the execution",
    ),
    Cause.HOST_OOM: (
        "[ 1234.5] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_1,task=python,pid=4021,uid=1000",
        "Memory cgroup out of memory: Kill process 24572 (python) score 0 or sacrifice child",
        "slurmstepd: error: Job 123 exceeded memory limit (68000000 > 67108864), being killed",
        "RuntimeError: unable to mmap 1073741824 bytes from file </torch_123_1>: Cannot allocate memory (12)",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 93.1 GiB for an array",
    ),
    Cause.STORAGE: (
        "slurmstepd: error: pyxis:     Write failed because No space left on device",
        "RuntimeError: File out/checkpoint_0.pt cannot be opened.",
        "RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 190007680 vs 190007572",
        "RuntimeError: write(): fd 29 failed with Input/output error",
        'SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "…" })',
        "cp: error writing '/scratch/x': Disk quota exceeded",
    ),
    Cause.COMMUNICATION: (
        "[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network address.",
        "RuntimeError: The server socket has failed to listen. port: 29500, code: -98, name: EADDRINUSE",
        "torch.distributed.DistStoreError: wait timeout after 1800000ms, keys: /default_pg/0//2//cpu//0/2",
        "RuntimeError: [3] is setting up NCCL communicator and retreiving ncclUniqueId from [0]: Socket Timeout",
        "node01:12:34 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
    ),
    Cause.HANG: (
        "0(default_pg) Rank 6] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL",
        "[Rank 4] Received a dump signal due to a collective timeout from this local rank",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE",
        "RuntimeError: Application timeout caused pair closure",
    ),
    Cause.PREEMPTED: ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***",),
    Cause.LAUNCH: (
        "slurmstepd: error: Could not run slurm task_prolog [/etc/slurm/p.sh]: No such file or directory",
        "FATAL:   could not open image /images/nemo.sif: no such file or directory",
        'Failed to pull image "registry/nemo:99.99": rpc error: code = NotFound',
        "docker: Error response from daemon: could not select device driver with capabilities: [[gpu]].",
        "srun: error: Task launch for 36.0 failed on node n131: Job credential expired",
    ),
    Cause.IMPORT_ERROR: (
        "/usr/bin/python: No module named torch.distributed.run",
        "python: symbol lookup error: /opt/te.so: undefined symbol: cublasLtCreate",
    ),
    Cause.INVALID_CONFIG: (
        "ValueError: Cannot use sequence parallelism without tensor parallelism",
        "ValueError: Only one of self.fp16: True and self.bf16 True should be True.",
        "ValueError: num_moe_experts must be non None to use expert-parallel.",
        "AssertionError: When using MoE and tensor parallelism, sequence parallelism must be used.",
        "Could not override 'model.num_layer'.",
        "Error merging 'config' with schema",
        "[rank1]:   size mismatch for mlp.weight: copying a param with shape torch.Size([8]) from checkpoint",
    ),
    Cause.DATA: (
        "RuntimeError: Internal: could not parse ModelProto from tokenizer.model",
        "OSError: Can't load tokenizer for '/models/llama'. If you were trying to load it from a hub, make sure …",
        "_pickle.UnpicklingError: invalid load key, 'v'.",
    ),
    Cause.CRASH: (
        "Killed",
        "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Aborted                 (core dumped) python train.py",
        "corrupted size vs. prev_size",
        "free(): invalid pointer",
        "[pod-0] terminated with exit code (137). Reason [Error].",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Aborted.",
    ),
    Cause.KERNEL_RESOURCES: (
        "InductorError: RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: red Required: 262144",
        "OutOfMemoryError: out of resource: triton_mm Required: 131072 Hardware limit:101376",
    ),
    Cause.NON_FINITE: (
        "RuntimeError: Function 'SoftmaxBackward0' returned nan values in its 0th output.",
        " iteration     5426/  250000 | lm loss: 2.1E+00 | grad norm: nan | number of nan iterations:   0 |",
        "02:31:56: train iter: 100 loss_net: nan loss_scale: 785.4 seconds: 122.871",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 4.5e-06, 'epoch': 0.66}",
        "Steps:   0%|    | 1/2000 [00:14<8:16:07, 14.89s/it, lr=1e-5, step_loss=nan][2024-07-10 15:50:50] [INFO] on",
    ),
    Cause.TIME_LIMIT: ("UncompletedJobError: Job not requeued because: timed-out and not checkpointable.",),
    Cause.SHARED_GPU: ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",),
    Cause.SKIPPED_STEPS: ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1",),
    Cause.NONE: (
        "Epoch [1][100/9999] lr: 1.0e-03, loss: 1.9, grad_norm: nan\nEpoch [1][200/9999] lr: 1.0e-03, grad_norm: 3.9",
        " iteration 100/ 1000 | lm loss: 2.1E+00 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        "Training epoch 0, iteration 9/99 | lr: 1e-05 | global_batch_size: 8 | reduced_train_loss: 2.2",
        "[2022-11-22 00:36:54,800] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=2, lr=[9.65e-06]",
    ),
}
TRAPS = (
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)",
    "To fix CUDA out of memory errors, lower the batch size.",
    "Documentation: an out of memory error is raised when the device is full",
    "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True # avoids OutOfMemoryError",
    "except torch.cuda.OutOfMemoryError:",
    '    raise torch.OutOfMemoryError("CUDA out of memory")',
    "parser.add_argument('--skip-oom', help='skip batches that raise CUDA out of memory')",
    "tests/test_oom.py::test_raises_OutOfMemoryError PASSED [ 50%]",
    "INFO: OutOfMemoryError handler installed",
    "Registered exception handlers: OutOfMemoryError, RuntimeError",
    "num_ooms: 0, num_alloc_retries: 0",
    "|        CUDA OOMs: 0            |        cudaMalloc retries: 0         |",
    "memory.events: low 0 high 0 max 0 oom 0 oom_kill 0",
    "wandb: Run summary: train/oom_count 0",
    "Note: the process may be Killed by the OOM killer if memory is short.",
    "the supervisor's record outlives a SIGKILL, a segmentation fault or a hang",
    "node01:1:2 [3] NCCL INFO NET/Plugin: libnccl-net.so: cannot open shared object file: No such file or directory",
)


@pytest.mark.parametrize(("cause", "line"), [(cause, line) for cause, lines in LINES.items() for line in lines])
def test_one_line_is_enough(cause: Cause, line: str) -> None:
    outcome = judge([read_text(line)]).outcome
    assert outcome.cause is cause, outcome


@pytest.mark.parametrize("line", TRAPS)
def test_a_line_that_only_sounds_like_a_failure_is_none(line: str) -> None:
    outcome = judge([read_text(line)]).outcome
    assert outcome.cause in (Cause.UNKNOWN, Cause.NONE), outcome
    assert outcome.label is None or outcome.cause not in OOM_CAUSES
