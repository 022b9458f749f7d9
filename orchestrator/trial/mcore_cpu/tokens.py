"""Training data made from the seed: the same tokens for the same seed, iteration, microbatch and replica."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_STEPS = 8


def microbatches(
    *, seed: int, replica: int, vocab_size: int, seq_length: int, micro_batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (tokens, labels), each [micro_batch_size, seq_length]: the label of a token is the one after it.

    Each token is the one before it plus a small random step, so there is something to learn.
    """
    generator = torch.Generator().manual_seed(seed * 100_003 + replica)
    shape = (micro_batch_size, seq_length + 1)
    while True:
        steps = torch.randint(0, min(_STEPS, vocab_size), shape, generator=generator)
        steps[:, 0] = torch.randint(0, vocab_size, shape[:1], generator=generator)
        tokens = steps.cumsum(dim=1).remainder_(vocab_size)
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
