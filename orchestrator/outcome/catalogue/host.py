"""What the host says when its memory, shared memory or storage is exhausted."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule, Weight
from orchestrator.vocabulary import Cause, Stage

HOST_RULES = (
    Rule(
        "host.oom-killer",
        Cause.HOST_OOM,
        (
            "oom_kill",
            "oom-kill",
            "Killed process",
            "OOM Killed",
            "Out Of Memory",
            "OOMKilled",
            "memory limit",
            "oom_reaper",
            "low on resource: memory",
            "emory cgroup out of memory",
        ),
        r"\boom[_-]kill\b(?![ =:]+0\b)|[Oo]ut of memory: Kill(?:ed)? process|OOM Killed|tasks?\b.*: Out Of Memory|"
        r"OOMKilled|"
        r"[Ee]xceed(?:ed|s|ing) (?:job |step |its |virtual )?memory limit|low on resource: memory|"
        r"[Mm]emory cgroup out of memory|oom_reaper: reaped",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed.",
    ),
    Rule(
        "host.ray-memory-monitor",
        Cause.HOST_OOM,
        (
            *("memory pressure", "running low on memory", "exceptions.OutOfMemoryError"),
            *("memory usage threshold", "ray-oom-prevention"),
        ),
        r"killed due to (?:the node running low on )?memory(?: pressure)?|running low on memory|"
        r"ray\.exceptions\.OutOfMemoryError|exceeds the memory usage threshold|ray-oom-prevention",
        "(raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure (OOM), "
        "0 Workers crashed due to other reasons",
    ),
    Rule(
        "host.shared-memory",
        Cause.HOST_OOM,
        ("out of shared memory", "insufficient shared memory", "shm", "</torch_"),
        r"out of shared memory|insufficient shared memory|/dev/shm.*(?:No space left|failed|exhausted)|"
        r"(?:No space left|failed|[Ee]rror).*/dev/shm|unable to (?:write to|mmap|open).*</torch_.*No space left|"
        r"creating shared memory segment.*(?:nccl|shm).*",
        "RuntimeError: DataLoader worker (pid 56811) is killed by signal: Bus error. It is possible that "
        "dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
    ),
    Rule(
        "host.bus-error",
        Cause.HOST_OOM,
        ("nonexistent physical address", "non-existent physical address"),
        r"Bus error: non-?existent physical address",
        "[node01:4242 :0:4250] Caught signal 7 (Bus error: nonexistent physical address)",
        weight=Weight.SIGNAL,
    ),
    Rule(
        "host.worker-bus-error",
        Cause.HOST_OOM,
        ("is killed by signal",),
        r"DataLoader worker \(pid.*\) is killed by signal: Bus error",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error.",
        stage=Stage.DATA_BUILD,
    ),
    Rule(
        "host.worker-killed",
        Cause.HOST_OOM,
        ("is killed by signal",),
        r"DataLoader worker \(pid.*\) is killed by signal: Killed",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed.",
        weight=Weight.SIGNAL,
        stage=Stage.DATA_BUILD,
    ),
    Rule(
        "host.allocation",
        Cause.HOST_OOM,
        (
            "CPUAllocator",
            "bad_alloc",
            "MemoryError",
            "annot allocate memory",
            "Errno 12]",
            "cudaHostAlloc",
            "HostRegister",
        ),
        r"DefaultCPUAllocator: .*(?:can't allocate|not enough) memory|std::bad_alloc|(?:^|"
        r"[\s:(])(?:\w+\.)*_?(?:Array)?MemoryError\b|"
        r"\b[Cc]annot allocate memory|\[Errno 12\]|cudaHost(?:Alloc|Register).*(?:fail|error|out of memory)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)",
    ),
    Rule(
        "host.storage-of-images",
        Cause.STORAGE,
        ("pyxis: ", "enroot"),
        r"(?:pyxis|enroot)\b.*(?:No space left on device|[Qq]uota exceeded|Read-only file system)",
        "slurmstepd: error: pyxis:     Write failed because No space left on device",
        stage=Stage.LAUNCH,
    ),
    Rule(
        "host.storage",
        Cause.STORAGE,
        (
            "No space left on device",
            "quota exceeded",
            "Quota exceeded",
            "Read-only file system",
            "Stale file handle",
            "Input/output error",
            "Errno 28]",
            "Errno 122]",
            "Errno 5]",
            "StreamWriter failed",
            "unexpected pos",
            "failed writing file",
            "ransport endpoint is not connected",
            "Permission denied",
            "iostream error",
            "file write failed",
            "StorageFull",
            "cannot be opened",
        ),
        r"RuntimeError: File \S+ cannot be opened|"
        r"No space left on device|[Qq]uota exceeded|Read-only file system|Stale file handle|Input/output error|"
        r"\[Errno (?:5|28|30|116|122)\]|StreamWriter failed|enforce fail at inline_container.*unexpected pos|"
        r"failed writing file|file write failed|basic_ios::clear: iostream error|StorageFull|"
        r"[Tt]ransport endpoint is not connected|PermissionError: \[Errno 13\]",
        "OSError: [Errno 122] Disk quota exceeded: '/results/iter_0000100/__3_0.distcp'",
    ),
)
