"""Meters: what the recorder reads at each edge."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.trial.meter import CudaMeter, NullMeter, Reading


class Allocator:
    """The counters of torch's caching allocator, under the names that it has for them."""

    def __init__(self) -> None:
        self.held = {"allocated_bytes": 10, "reserved_bytes": 20}
        self.most = dict(self.held)
        self.calls = 0
        self.resets = 0

    def hold(self, allocated: int, reserved: int) -> None:
        self.held = {"allocated_bytes": allocated, "reserved_bytes": reserved}
        self.most = {name: max(self.most[name], self.held[name]) for name in self.most}

    def stats(self, device: int) -> dict[str, Any]:
        assert device == 3
        self.calls += 1
        sizes = {name: {"all": {"current": self.held[name], "peak": self.most[name]}} for name in self.held}
        return {**sizes, "num_alloc_retries": 1, "num_ooms": 2}

    def reset(self, device: int) -> None:
        assert device == 3
        self.resets += 1
        self.most = dict(self.held)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    cuda = SimpleNamespace(
        current_device=lambda: 3,
        get_device_properties=lambda device: SimpleNamespace(total_memory=80_000),
        get_per_process_memory_fraction=lambda device: 0.5,
    )
    binding = SimpleNamespace(_cuda_memoryStats=made.stats, _cuda_resetPeakMemoryStats=made.reset)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=binding, __version__="9.9"))
    return made


def test_an_edge_asks_the_allocator_once(allocator: Allocator) -> None:
    meter = CudaMeter()
    allocator.hold(500, 700)
    allocator.hold(100, 700)
    assert meter.edge() == Reading(500, 700, 100, 700)
    assert allocator.calls == 1
    assert meter.edge() == Reading(100, 700, 100, 700)


def test_a_peak_is_reset_only_where_something_was_freed_since(allocator: Allocator) -> None:
    meter = CudaMeter()
    allocator.hold(500, 700)
    assert meter.edge() == Reading(500, 700, 500, 700)
    assert allocator.resets == 0
    allocator.hold(600, 700)
    allocator.hold(100, 700)
    assert meter.edge() == Reading(600, 700, 100, 700)
    assert allocator.resets == 1
    allocator.hold(100, 900)
    allocator.hold(100, 700)
    assert meter.edge() == Reading(100, 900, 100, 700)
    assert meter.edge() == Reading(100, 700, 100, 700)
    assert allocator.resets == 2


def test_the_parts_say_the_same(allocator: Allocator) -> None:
    meter = CudaMeter(3)
    allocator.hold(500, 700)
    allocator.hold(100, 650)
    assert (meter.peak(), meter.current()) == ((500, 700), (100, 650))
    meter.reset()
    assert meter.peak() == (100, 650)
    assert meter.retries_and_ooms() == (1, 2)


def test_the_capacity_is_what_is_left_to_this_process(allocator: Allocator) -> None:
    assert CudaMeter().capacity() == 40_000


def test_a_torch_without_the_counters_is_refused_by_name(allocator: Allocator) -> None:
    del sys.modules["torch"]._C._cuda_memoryStats
    with pytest.raises(RuntimeError, match=r"torch 9.9 has no torch._C._cuda_memoryStats"):
        CudaMeter()


def test_nothing_measured_reads_as_nothing() -> None:
    meter = NullMeter()
    assert meter.edge() == Reading(-1, -1, -1, -1)
    assert meter.retries_and_ooms() == (None, None)
