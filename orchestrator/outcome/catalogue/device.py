"""Wordings of a full device, across releases of torch, NCCL and the driver."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule, Weight
from orchestrator.vocabulary import Cause, Stage

_TYPE = r"(?<!exceptions\.)\bOutOfMemoryError\b"

REMARK_RULES = (
    Rule(
        "remark.caught-oom",
        Cause.NONE,
        ("out of memory", "Out of memory", "OutOfMemory", "OOM"),
        r"(?i)\bwarn(?:ing)?\b(?<!NCCL WARN).*(?:out of memory|outofmemory|\boom\b)|"
        r"(?:out of memory|outofmemory|\b(?<!ray-)oom\b)(?!.*ray-oom).*\b(?:retry(?:ing)?|switching to|"
        r"fall(?:ing)? ?back|skipp(?:ed|ing)|recover(?:ed|ing)|ignor(?:ed|ing)|reducing)\b",
        "WARNING: CUDA OutOfMemoryError encountered during tensors merging. Switching to CPU merge.",
    ),
    Rule(
        "remark.caught-first",
        Cause.NONE,
        ("out of memory", "Out of memory", "OutOfMemory", "OOM"),
        r"(?i)\b(?:caught|recovered from|survived|handled|skipp(?:ed|ing)[^:]*(?:due to|after|because of))\b[^:]*"
        r"(?:out of memory|outofmemory|\boom\b)",
        "caught OOM in microbatch 3, skipping it",
    ),
)
"""Lines that name a failure and say that it was dealt with."""

DEVICE_RULES = (
    Rule(
        "device.kernel-resources",
        Cause.KERNEL_RESOURCES,
        ("out of resource",),
        r"OutOfMemoryError: out of resource|No valid triton configs.*out of resource",
        "RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 131072 "
        "Hardware limit:101376 Reducing block sizes or `num_stages` may help.",
    ),
    Rule(
        "device.impossible-request",
        Cause.UNKNOWN,
        ("1EB memory",),
        r"Tried to allocate more than 1EB",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        weight=Weight.VAGUE,
    ),
    Rule(
        "device.nccl-calloc",
        Cause.NCCL_OOM,
        ("Failed to CUDA", "Failed to cuMem"),
        r"Failed to CUDA (?:calloc|malloc)|Failed to cuMem",
        "node01:3063028:3066152 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",
    ),
    Rule(
        "device.nccl-cuda-failure",
        Cause.NCCL_OOM,
        ("uda failure", "out of memory"),
        r"[Cc]uda failure(?: \d+)?:? ?'?out of memory|\bNCCL\b.*\bout of memory\b",
        "node01:47604:53083 [0] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'",
    ),
    Rule(
        "device.torch-oom",
        Cause.DEVICE_OOM,
        ("ried to allocate",),
        r"(?:out of memory|OutOfMemoryError).{0,80}?[Tt]ried to allocate",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …",
    ),
    Rule(
        "device.capture-invalidated",
        Cause.UNKNOWN,
        ("during capture", "is capturing", "capturing stream", "StreamCapture", "STREAM_CAPTURE"),
        r"capturing stream has unjoined work|"
        r"operation (?:failed due to a previous error during capture|not permitted when stream is capturing|"
        r"would make the legacy stream depend on a capturing)|cudaErrorStreamCapture\w+|cudaStreamCaptureStatus\w+|"
        r"CUDA_ERROR_STREAM_CAPTURE_\w+",
        "RuntimeError: CUDA error: operation failed due to a previous error during capture",
        weight=Weight.VAGUE,
        stage=Stage.GRAPH_CAPTURE,
    ),
    Rule(
        "device.driver-oom",
        Cause.DEVICE_OOM,
        ("out of memory", "OUT_OF_MEMORY", "ErrorMemoryAllocation", "hipErrorOutOfMemory"),
        r"(?:CUDA|HIP|XPU|NPU)(?: driver| runtime)? [Ee]rror[^\n]{0,160}?\bout of memory|"
        r"Triton Error \[\w+\]: out of memory|"
        r"THCudaCheck FAIL.*out of memory|"
        r"cuda runtime error \(2\)|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|"
        r"cudaMalloc\w*\b.{0,60}failed.{0,40}out of memory|cuMem(?:Create|Alloc|Map)\w*.{0,60}out of memory",
        "RuntimeError: CUDA error: out of memory",
    ),
    Rule(
        "device.allocation-failed",
        Cause.DEVICE_OOM,
        ("DEVICE_ALLOCATION_FAILED", "Out of memory allocating", "RESOURCE_EXHAUSTED", "Allocation on device"),
        r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|Out of memory allocating [\d,]+ bytes|"
        r"RESOURCE_EXHAUSTED: Out of memory|OutOfMemoryError: Allocation on device",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: "
        "78,400 bytes).",
    ),
    Rule(
        "device.oom-named",
        Cause.DEVICE_OOM,
        ("OutOfMemoryError", "out of memory"),
        rf"Error\b.{{0,20}}\b(?:CUDA|HIP|NPU|XPU|MPS backend) out of memory|^(?:CUDA|HIP|NPU|XPU) out of memory\b|"
        rf"RayTaskError\(OutOfMemoryError\)|an instance of 'c10::(?:cuda::)?\w*OutOfMemoryError'|^(?:torch\.|"
        rf"torch\.cuda\.|c10::|\w+\.)*{_TYPE}(?::|$)",
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::MegatronTrainRayActor.train() (pid=1234, ip=10.0.0.1)",
    ),
)
