"""Settings that no job can have: a prediction of them would be of something else."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.predict.job import BLOCK, FULL, UNIFORM, Job
from orchestrator.predict.problem import CannotRunError


def refuse_inconsistent(job: Job) -> None:
    """Megatron Core refuses each of these itself, where it is asked.

    Raises:
        CannotRunError: with what does not go together.
    """
    problem = next(_problems(job), None)
    if problem is not None:
        raise CannotRunError(problem)


def _problems(job: Job) -> Iterator[str]:
    shapes, layout, batch, recompute = job.shapes, job.layout, job.batch, job.recompute
    mixers = {kind.mixer for kind in shapes.layers}
    if mixers & {"mla", "gqa"} and shapes.attention.heads % layout.tp:
        yield f"{shapes.attention.heads} attention heads do not divide by tp={layout.tp}"
    if "gqa" in mixers and shapes.attention.groups % layout.tp and layout.tp % shapes.attention.groups:
        yield f"{shapes.attention.groups} query groups do not divide by tp={layout.tp}"
    if shapes.experts.count % layout.ep:
        yield f"{shapes.experts.count} experts do not divide by ep={layout.ep}"
    if layout.ep > 1 and not shapes.experts.count:
        yield f"ep={layout.ep} needs a model with experts"
    if shapes.vocab % layout.tp:
        yield f"a vocabulary of {shapes.vocab} does not divide by tp={layout.tp}"
    if batch.seq_length % layout.cp:
        yield f"seq_length={batch.seq_length} does not divide by cp={layout.cp}"
    if layout.vpp is not None and layout.vpp > 1 and layout.pp == 1:
        yield f"vpp={layout.vpp} needs pp above 1"
    if batch.global_batch % (batch.micro_batch * layout.dp):
        yield (
            f"global_batch_size={batch.global_batch} does not divide by micro_batch_size={batch.micro_batch} times "
            f"{layout.dp} data-parallel ranks"
        )
    if recompute.granularity == FULL:
        if recompute.method not in (UNIFORM, BLOCK):
            yield "full recompute needs recompute_method=uniform or block, and recompute_num_layers"
        elif recompute.num_layers is None or recompute.num_layers < (recompute.method == UNIFORM):
            yield f"full {recompute.method} recompute needs recompute_num_layers, and {recompute.num_layers} is none"
