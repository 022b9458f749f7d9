"""Training data made from the seed: the same tokens for the same seed, iteration, microbatch and replica."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_STEPS = 8


def microbatches(
    *, seed: int, replica: int, vocab_size: int, seq_length: int, micro_batch_size: int, resident_tokens: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (tokens, labels), each [micro_batch_size, seq_length]: the label of a token is the one after it.

    Each token is the one before it plus a small random step, so there is something to learn. With `resident_tokens`
    they come from that many tokens made now and kept, 8 bytes each, over and over.
    """
    generator = torch.Generator().manual_seed(seed * 100_003 + replica)
    if resident_tokens:
        rows = max(micro_batch_size, resident_tokens // (seq_length + 1))
        return _from_corpus(_walks(generator, rows, seq_length + 1, vocab_size), micro_batch_size)
    return _on_demand(generator, micro_batch_size, seq_length + 1, vocab_size)


def _on_demand(
    generator: torch.Generator, rows: int, length: int, vocab_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield _split(_walks(generator, rows, length, vocab_size))


def _from_corpus(corpus: torch.Tensor, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    start = 0
    while True:
        yield _split(corpus[start : start + rows])
        start = start + rows if start + 2 * rows <= corpus.shape[0] else 0


def _walks(generator: torch.Generator, rows: int, length: int, vocab_size: int) -> torch.Tensor:
    steps = torch.randint(0, min(_STEPS, vocab_size), (rows, length), generator=generator)
    steps[:, 0].random_(0, vocab_size, generator=generator)
    return torch.cumsum(steps, dim=1, out=steps).remainder_(vocab_size)


def _split(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
