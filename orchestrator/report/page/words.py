"""What a reader from outside must be told of the words of a report."""

from __future__ import annotations

WORDS = (
    ("[]", "selective recompute with an empty list of modules: nothing is recomputed. It is the control."),
    ("control", "the run that changes and costs are held against; it opens each job, and closes longer ones."),
    ("match key", "a digest of all that affects a result beside recompute; only runs of one key are compared."),
    ("full uniform n, full block n", "whole layers are recomputed: all in groups of n, or the first n of each stage."),
    ("one label", "what one more module in the list changed, against the candidate without it."),
    ("rank, stage", "where the peak was: which process, and in which part of its work (forward, optimizer_step, ...)."),
    ("forward peak", "the most allocated in forward: what recompute lowers, also where another stage sets the peak."),
    ("replay", "the forward of a recomputed part, run again inside backward."),
    ("allocated, reserved", "memory of live tensors; memory that torch's allocator took from the device to hold them."),
    ("noise band", "how far a step time moves by itself, in percent (the notes say from what)."),
    ("control drift", "how far the step times of a job's first and last control lay apart."),
    ("GB", "1e9 bytes."),
)
"""Word and meaning."""
