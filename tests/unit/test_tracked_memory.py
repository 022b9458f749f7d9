"""Tracked memory against counts made by hand. Sizes are bytes of float32."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the cpu extra is not installed")

from orchestrator.trial.mcore_cpu.memory import TrackedMemory, format_size  # noqa: E402  after the check for torch

BATCH, WIDTH, OUTPUT = 8, 5, 3
WEIGHT, BIAS = 4 * WIDTH * OUTPUT, 4 * OUTPUT
INPUT, RESULT, SCALAR = 4 * BATCH * WIDTH, 4 * BATCH * OUTPUT, 4


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


def window(memory: TrackedMemory) -> tuple[int, int]:
    """Peak since the last call, and what is live now."""
    reading = memory.edge()
    return reading.peak_allocated, reading.allocated


def test_one_linear_layer_with_adam_is_exact_to_the_byte() -> None:
    with TrackedMemory() as memory:
        layer = torch.nn.Linear(WIDTH, OUTPUT)
        optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
        parameters = WEIGHT + BIAS
        assert window(memory) == (parameters, parameters)

        inputs = torch.randn(BATCH, WIDTH)
        result = layer(inputs)
        held = parameters + INPUT + RESULT
        assert window(memory) == (held, held)

        loss = (result * result).sum()  # the square lives until it is summed
        assert window(memory) == (held + RESULT + SCALAR, held + SCALAR)
        held += SCALAR

        # The gradient of a square arrives as two products that are added up: three tensors like the result, and the
        # one that backward began with.
        loss.backward()
        held += parameters
        assert window(memory) == (held - parameters + SCALAR + 3 * RESULT, held)

        del result, loss
        held -= RESULT + SCALAR
        optimizer.step()  # two moments and a step count for each parameter, and two copies of the larger one on the way
        state = 2 * parameters + 2 * SCALAR
        assert window(memory) == (held + state + 2 * WEIGHT, held + state)

        optimizer.zero_grad()
        assert window(memory)[1] == held + state - parameters
        del layer, optimizer, inputs
        gc.collect()
        assert window(memory)[1] == 0


def test_views_count_once_and_the_last_one_keeps_the_memory() -> None:
    with TrackedMemory() as memory:
        whole = torch.zeros(1000)
        parts = [whole[10:], whole.view(10, 100), whole.detach(), *whole.split(100)]
        assert memory.current()[0] == 4000
        del whole
        assert memory.current()[0] == 4000
        parts.clear()
        assert memory.current()[0] == 0


def test_what_backward_needs_stays_counted_until_it_ran() -> None:
    with TrackedMemory() as memory:
        leaf = torch.ones(100, requires_grad=True)
        middle = leaf.exp()
        loss = middle.sum()
        del middle
        assert memory.current()[0] == 400 + 400 + 4
        loss.backward()
        del loss
        assert memory.current()[0] == 400 + 400


def test_a_storage_resized_to_nothing_and_back_is_followed() -> None:
    with TrackedMemory() as memory:
        tensor = torch.zeros(256)
        tensor.untyped_storage().resize_(0)
        assert memory.current()[0] == 0
        tensor.untyped_storage().resize_(1024)
        assert memory.current()[0] == 1024
        tensor.resize_(512)
        assert memory.current()[0] == 2048
    tensor.untyped_storage().resize_(0)
    assert memory.current()[0] == 2048, "outside of the tracker nothing is followed any more"


@pytest.mark.parametrize("depth", [3, 100])
def test_backward_inside_backward_is_counted_however_deep(depth: int) -> None:
    seen: list[int] = []

    class Nest(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any, left: int) -> Any:
            ctx.left = left
            ctx.save_for_backward(value)
            return value * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (value,) = ctx.saved_tensors
            with torch.enable_grad():
                inner = value.detach().requires_grad_()
                if ctx.left:
                    Nest.apply(inner, ctx.left - 1).sum().backward()
                else:
                    before = memory.current()[0]
                    kept = torch.zeros(1000)
                    seen.append(memory.current()[0] - before)
                    del kept
            return grads[0], None

    with TrackedMemory() as memory:
        Nest.apply(torch.ones(2, requires_grad=True), depth).sum().backward()
    assert seen == [4000]


MESSAGE = re.compile(
    r"CPU \(tracked\) out of memory\. Tried to allocate (?P<asked>.+?)\. CPU 0 has a total capacity of "
    r"(?P<capacity>.+?) of which (?P<free>.+?) is free\. Process \d+ has (?P<used>.+?) memory in use\. Of the "
    r"allocated memory (?P<live>.+?) is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated\."
)


def test_the_error_has_torchs_words_and_the_exact_numbers() -> None:
    with TrackedMemory(capacity_bytes=3 * 2**20) as memory:
        held = torch.empty(2**19)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(2**19)
        assert memory.peak()[0] == held.untyped_storage().nbytes(), "what did not fit was never there"
        assert memory.retries_and_ooms() == (None, 1)
    found = MESSAGE.fullmatch(str(caught.value))
    assert found is not None
    assert found.groupdict() == {
        "asked": "2.00 MiB",
        "capacity": "3.00 MiB",
        "free": "1024.00 KiB",
        "used": "2.00 MiB",
        "live": "2.00 MiB",
    }


def test_forward_backward_and_optimizer_all_stop_at_the_capacity() -> None:
    def steps() -> Iterator[str]:
        layer = torch.nn.Linear(64, 64, bias=False)
        optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
        inputs = torch.randn(16, 64)
        yield "forward"
        loss = layer(inputs).sum()
        yield "backward"
        loss.backward()
        yield "optimizer"
        optimizer.step()
        yield "end"

    def reached(capacity: int) -> str:
        where = "setup"
        with TrackedMemory(capacity) as memory:
            try:
                for step in steps():
                    where = step
            except torch.OutOfMemoryError:
                pass
            assert memory.peak()[0] <= capacity
        gc.collect()
        return where

    weight, inputs, result = 4 * 64 * 64, 4 * 16 * 64, 4 * 16 * 64
    setup = weight + inputs
    assert reached(setup - 1) == "setup"
    assert reached(setup) == "forward"
    assert reached(setup + result + SCALAR) == "backward"
    after_backward = setup + weight + SCALAR
    assert reached(after_backward + weight) == "optimizer"
    assert reached(after_backward + 5 * weight) == "end"


def test_an_allocation_can_be_told_to_fail() -> None:
    with TrackedMemory() as memory:
        memory.fail_allocation(2)
        kept = torch.zeros(10)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(10)
        assert memory.current()[0] == kept.untyped_storage().nbytes()
        torch.zeros(10)
        memory.fail_allocation(3)
        torch.zeros(10)
        assert memory.spare() == 2
        torch.zeros(10), torch.zeros(10)


def test_copies_that_a_library_makes_for_itself_are_left_out() -> None:
    with TrackedMemory() as memory:
        with memory.not_counting():
            scratch = torch.zeros(10)
        counted = torch.zeros(10)
        assert memory.current()[0] == 40
        del scratch
        assert memory.current()[0] == 40
        del counted
        assert memory.current()[0] == 0


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1024, "1024 bytes"), (1536, "1.50 KiB"), (2**20, "1024.00 KiB"), (5 * 2**30 // 2, "2.50 GiB")],
)
def test_sizes_are_written_as_torch_writes_them(size: int, text: str) -> None:
    assert format_size(size) == text
