"""What a person does next, by where and why it stopped: after the guide's failure table and measurement contract."""

from __future__ import annotations

from orchestrator.vocabulary import SETUP_STAGES, Cause, Stage
from orchestrator.vocabulary.causes import OOM_CAUSES

_ACTIVATIONS = frozenset({Stage.FORWARD, Stage.BACKWARD, Stage.REPLAY})
_STATE = frozenset({Stage.GRAD_SYNC, Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP})

_BY_STAGE = {
    Stage.GRAPH_CAPTURE: (
        "Private pools of CUDA graphs hold memory beside the allocator's: narrow the graph scope or switch graphs "
        "off, and look whether a checkpoint boundary straddles a graph. Full recompute works with full-iteration "
        "graphs only.",
    ),
    Stage.EVALUATE: (
        "Evaluation keeps no activations for a backward, so recompute does not help it: lower its micro-batch size "
        "or its logits (sequence length times vocabulary), or free gradients before it.",
    ),
    Stage.CHECKPOINT_LOAD: (
        "A loaded optimizer brings its moments at once, and merging shards copies them: load with less in memory "
        "(fully sharded format, merging on the CPU), or shard the optimizer wider.",
    ),
    Stage.CHECKPOINT_SAVE: (
        "Saving gathers or copies what it writes: use a fully sharded format, save from fewer staging buffers, and "
        "empty the cache before it. Training itself fits.",
    ),
}

_BY_CAUSE = {
    Cause.FRAGMENTATION: (
        "The allocator holds enough memory for the request, in pieces. Set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and measure again before adding recompute.",
    ),
    Cause.NCCL_OOM: (
        "NCCL allocates outside of torch's pool and found the device full. Lower the peak of that stage, or keep "
        "memory back for it (torch.cuda.set_per_process_memory_fraction), and use fewer communicators or smaller "
        "buffers.",
    ),
    Cause.SHARED_GPU: (
        "Another process holds memory of this GPU. Find it (nvidia-smi), end it or use another node, and run the same "
        "again: this says nothing about the configuration.",
    ),
    Cause.NON_FINITE: (
        "Losses are not finite: the measurement is void. Check the learning rate, the precision and the data around "
        "the iteration named; with dropout, full recompute changes the order of random numbers.",
    ),
    Cause.SKIPPED_STEPS: (
        "The optimizer skipped steps, so neither memory nor time is that of a full step. Warm the loss scale up "
        "first, or use bf16, and measure again.",
    ),
    Cause.KERNEL_RESOURCES: (
        "A kernel asks for more shared memory or registers than this GPU has. This is not memory pressure: choose "
        "another implementation of that operation, or smaller tiles.",
    ),
    Cause.NODE_FAILURE: ("Slurm lost a node. Run the same again; leave the node out if it happens twice.",),
    Cause.PREEMPTED: ("The job gave way to another. Run the same again.",),
    Cause.HARDWARE: (
        "The GPU or its link reported a fault. Run the same again without that node (--exclude), and tell whoever "
        "runs it.",
    ),
    Cause.COMMUNICATION: (
        "A connection failed and no rank says why. Look at the log of the rank that is missing among those that "
        "complain; if all complain, at the network. Run the same again.",
    ),
    Cause.HANG: (
        "Ranks waited for one that did not come. Look for the rank that did not enter the collective, and for an "
        "earlier out-of-memory error in its log: that is the most common reason.",
    ),
    Cause.CASCADE: (
        "This rank was ended because another failed, and the first failure is not in what was read. Give the logs of "
        "all ranks and nodes.",
    ),
    Cause.TIME_LIMIT: ("The time was too short: raise the limit, or measure fewer iterations.",),
    Cause.INVALID_CONFIG: (
        "The framework refuses the configuration, and the line says which setting. Change that one alone; labels "
        "differ between revisions, and overlap, FP8 and CUDA graphs restrict what can be recomputed.",
    ),
    Cause.IMPORT_ERROR: (
        "A module or library is absent or was built for another release: fix the image or environment.",
    ),
    Cause.REVISION_MISMATCH: (
        "The software found is not the one that was pinned: use the right image or change the pin.",
    ),
    Cause.SUBMISSION: ("Slurm refused the job: correct account, partition, QOS or limits.",),
    Cause.LAUNCH: (
        "The ranks could not be started, or the image does not fit the node: check image, mounts, set-up lines and "
        "driver.",
    ),
    Cause.STORAGE: (
        "A file system is full, over quota or gone: free space or write elsewhere, then run the same again.",
    ),
    Cause.DATA: ("Input is absent or cannot be read: check the path named in the line, and the tokenizer.",),
    Cause.HOST_OOM: (
        "Memory of the host ran out, not that of the GPU: ask for more, lower the number of data workers and pinned "
        "buffers, raise /dev/shm. Recompute does not help it, and offloading makes it worse.",
    ),
    Cause.ILLEGAL_ACCESS: (
        "A kernel read or wrote where it must not, or an index was out of range. This is not memory pressure. Run once "
        "with CUDA_LAUNCH_BLOCKING=1 to get the true line.",
    ),
    Cause.GPU_LIBRARY: (
        "cuBLAS or cuDNN failed. Where it is an allocation that failed, the device may be full: compare the peak "
        "with the capacity. Otherwise an earlier error of the same rank, or versions that do not fit, cause it.",
    ),
    Cause.CRASH: (
        "The process died of a signal and nothing says why. For SIGKILL look into the node's kernel log for the OOM "
        "killer; for a segmentation fault run once with PYTHONFAULTHANDLER=1.",
    ),
    Cause.CANCELLED: ("Somebody ended it. Run the same again when wanted.",),
    Cause.UNKNOWN: ("No rule knows this. The deciding line, or what stands before it, is where to look.",),
    Cause.NONE: (),
}


def next_steps(cause: Cause, stage: Stage) -> tuple[str, ...]:
    """What to do, most useful first; nothing where nothing is wrong."""
    if cause is not Cause.DEVICE_OOM:
        steps = _BY_CAUSE[cause]
        return steps if cause not in OOM_CAUSES else (*steps, *_of_full_device(stage))
    return _of_full_device(stage)


def _of_full_device(stage: Stage) -> tuple[str, ...]:
    if stage in _ACTIVATIONS:
        return (
            "Activations fill the device. Keep a control with recompute_modules=[] and add the narrowest boundary of "
            "this architecture: mla_up_proj for multi-latent attention, moe_act and then layernorm for grouped "
            "experts, core_attn for unfused attention; whole moe, mlp or full recompute only when those do not fit.",
            "Compare per-rank peaks: with pipelining the hot rank can be helped by another layer split instead.",
        )
    if stage in _STATE:
        return (
            "Parameters, gradients and optimizer state set this peak: recompute is not the lever, or has already "
            "moved the wall here. Shard the optimizer, use lower-precision state, or offload it.",
            "A candidate that only gets this far has not passed: it must do several steps after its optimizer state "
            "exists.",
        )
    if stage in _BY_STAGE:
        return _BY_STAGE[stage]
    if stage is not Stage.UNKNOWN and stage not in SETUP_STAGES:
        return ("This stage needs little memory of its own: the device was full already. Lower the peak of the step.",)
    if stage in SETUP_STAGES:
        return (
            "Weights and buffers alone do not fit: use more model parallelism or a smaller model. Recompute cannot "
            "help.",
        )
    return (
        "The log does not say in which stage. Run it as a trial of ours, which records the stage, or get the whole "
        "traceback of the first rank that failed.",
    )
