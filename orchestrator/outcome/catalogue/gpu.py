"""What a GPU, its driver or its libraries say when something other than memory is wrong."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule, Weight
from orchestrator.vocabulary import Cause

GPU_RULES = (
    Rule(
        "gpu.kernel-resources",
        Cause.KERNEL_RESOURCES,
        ("OutOfResources", "out of resource", "too many resources requested", "too much shared data"),
        r"OutOfResources|out of resource:|too many resources requested for launch|uses too much shared data",
        "triton.runtime.autotuner.OutOfResources: out of resource: shared memory, Required: 663808, "
        "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
    ),
    Rule(
        "gpu.xid-of-application",
        Cause.ILLEGAL_ACCESS,
        ("Xid",),
        r"\bXid\b[^:]*(?:\([^)]*\))?: *(?:13|31)\b",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=4021, name=python, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    ),
    Rule(
        "gpu.xid-of-cleanup",
        Cause.UNKNOWN,
        ("Xid",),
        r"\bXid\b[^:]*(?:\([^)]*\))?: *(?:(?:43|45|92)\b|\d+, \w+ Nonfatal\b)",
        "NVRM: Xid (PCI:0000:3b:00): 45, pid=4021, name=python, Ch 00000010",
        weight=Weight.ECHO,
    ),
    Rule(
        "gpu.xid-of-remapping",
        Cause.HARDWARE,
        ("Xid",),
        r"\bXid\b[^:]*(?:\([^)]*\))?: *63\b",
        "NVRM: Xid (PCI:0000:3b:00): 63, pid=4021, name=python, Row Remapper: New row marked for remapping",
        weight=Weight.SIGNAL,  # a row was replaced: it does not displace what stopped a program
    ),
    Rule(
        "gpu.xid",
        Cause.HARDWARE,
        ("Xid",),
        r"\bNVRM: Xid\b|\bXid\b[^:]*(?:\([^)]*\))?: *\d+|[Cc]ritical Xid|\bXid (?:[Ee]rror|\d+)",
        "[74889.644132] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
    ),
    Rule(
        "gpu.hardware",
        Cause.HARDWARE,
        (
            "ECC error",
            "ECCUncorrectable",
            "fallen off the bus",
            "GPU_IS_LOST",
            "GPU is lost",
            "device handle for",
            "NVLink",
            "NVLINK",
            "SystemNotReady",
            "system not yet initialized",
            "hardware stack error",
            "evice is lost",
            "Hardware Error",
            "RmInitAdapter failed",
            "initialize NVML",
            "NvlinkUncorrectable",
            "ECC_UNCORRECTABLE",
        ),
        r"uncorrectable (?:NVLink|ECC) error|cudaErrorECCUncorrectable|fallen off the bus|GPU(?: is |_IS_)(?i:lost)|"
        r"Unable to determine the device handle for|NVLINK?:? .*(?:fatal|error)|cudaErrorSystemNotReady|"
        r"(?:CUDA error|Error 802): (?:system not yet initialized|hardware stack error)|NVLink error|"
        r"[Dd]evice is lost|RmInitAdapter failed|initialize NVML: (?:GPU is lost|Unknown Error)|"
        r"cudaErrorNvlinkUncorrectable|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE|\[Hardware Error\]",
        "CUDA error: uncorrectable ECC error encountered",
    ),
    Rule(
        "gpu.illegal-access",
        Cause.ILLEGAL_ACCESS,
        (
            "illegal memory access",
            "IllegalAddress",
            "ILLEGAL_ADDRESS",
            "device-side assert",
            "misaligned address",
            "unspecified launch failure",
            "llegal instruction was",
            "Memory access fault by GPU",
            "Invalid __global__",
            "DeviceAssert",
            "LaunchFailure",
            "LAUNCH_FAILED",
            *("Assertion `", "Warp Illegal"),
        ),
        r"an illegal memory access was|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|"
        r"device-side assert triggered|"
        r"(?:(?:CUDA|HIP) [Ee]rror|Triton Error \[CUDA\]|[Cc]uda failure \d*|error=\d+ |"
        r"runtime error \(\d+\) ):? ?'?(?:misaligned address|"
        r"unspecified launch failure|an illegal instruction was)|cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED|"
        r"cudaErrorMisalignedAddress|cudaErrorAssert|"
        r"Memory access fault by GPU|Warp Illegal (?:Address|Instruction)|Invalid __global__ (?:read|write)|"
        r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion `",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ),
    Rule(
        "gpu.none",
        Cause.LAUNCH,
        ("NoGpuError: ", "PlaceError: "),
        r"\btrial\.(?:bridge\.gpu\.NoGpu|place\.Place)Error: ",
        "orchestrator.trial.bridge.gpu.NoGpuError: local rank 1 has no GPU: this node shows 1; ask for one a rank",
    ),
    Rule(
        "gpu.unfit-image",
        Cause.LAUNCH,
        (
            "no kernel image is available",
            "driver version is insufficient",
            "driver on your system is too old",
            "No CUDA GPUs are available",
            "no CUDA-capable device",
            "Found no NVIDIA driver",
            "invalid device ordinal",
            "Duplicate GPU detected",
            "unsupported display driver",
            "forward compatibility was attempted",
            "for --gpu-architecture",
            "for option 'gpu-name'",
            "kernel image is invalid",
            "PTX was compiled with",
            "nvidia-smi has failed",
            "library version mismatch",
            "nvidia-container-cli",
        ),
        r"no kernel image is available for execution|CUDA driver version is insufficient|"
        r"driver on your system is too old|"
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Found no NVIDIA driver|"
        r"invalid device ordinal|"
        r"Duplicate GPU detected|unsupported display driver / cuda driver combination|"
        r"forward compatibility was attempted on non supported HW|invalid value for --gpu-architecture|"
        r"is not defined for option 'gpu-name'|device kernel image is invalid|PTX was compiled with an unsupported|"
        r"Driver/library version mismatch|nvidia-container-cli: ",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    Rule(
        "gpu.busy",
        Cause.SHARED_GPU,
        ("busy or unavailable", "held by another process", "DevicesUnavailable", "SharedGpuError: "),
        r"\bSharedGpuError: |CUDA-capable device\S* \S+ busy or unavailable|cudaErrorDevicesUnavailable|"
        r"memory is (?:already )?(?:taken|held) by another process",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    ),
    Rule(
        "gpu.library",
        Cause.GPU_LIBRARY,
        (
            "CUBLAS_STATUS_",
            "CUDNN_STATUS_",
            "cuDNN Error",
            "cuDNN error",
            *("cuBLAS Error", "CUBLAS Error", "CUDNN Error"),
            "CUSOLVER_STATUS_",
            "CUFFT_",
            "CUSPARSE_STATUS_",
            "HIPBLAS_STATUS_",
            "miopenStatus",
            "suitable cuBLAS",
            "was unable to find an engine",
            "suitable algorithms",
            "cudnn_frontend",
            "CUDNN_BACKEND_",
            "CUBLAS failure",
            "cutlass",
            "CUTLASS",
            "No execution plans",
            "cuDNN Frontend",
            "cublasLt",
            "cublaslt",
        ),
        r"CUBLAS_STATUS_(?!SUCCESS)|CUDNN_STATUS_(?!SUCCESS)|(?:cuDNN|CUDNN|cuBLAS|CUBLAS) [Ee]rror|"
        r"CUSOLVER_STATUS_(?!SUCCESS)|"
        r"CUFFT_(?!SUCCESS)[A-Z_]+|CUSPARSE_STATUS_(?!SUCCESS)|HIPBLAS_STATUS_(?!SUCCESS)|miopenStatus\w+|"
        r"Unable to find (?:any )?suitable (?:cuBLAS|algorithms)|was unable to find an engine|"
        r"\[cudnn_frontend\] (?i:error)|cuDNN Frontend [Ee]rror|CUDNN_BACKEND_\w*FAILED|CUBLAS failure \d+|"
        r"(?i:cutlass) (?:[Ee]rror|cannot implement|.*(?:failed|Error Internal))|Error Internal at .*cutlass|"
        r"No execution plans (?:support|built)|cublas[Ll]t\w*\(?.*failed",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
)
