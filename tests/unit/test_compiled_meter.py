"""The compiled reading of an allocator: the real compiler, and torch's real interface with a device of our own."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.trial import compiled_meter
from orchestrator.trial.bridge import trainer as bridge
from orchestrator.trial.compiled_meter import COMPARED_EDGES, Compilation, CompiledMeter, CompileError

PRIVATE_USE = 20
"""`c10::DeviceType::PrivateUse1`: a device that torch leaves to others."""

ALLOCATOR = r"""
#include <c10/core/CachingDeviceAllocator.h>
using namespace c10;
namespace {
struct Ours final : DeviceAllocator {
  CachingDeviceAllocator::DeviceStats stats;
  DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(MempoolId_t) override {}
  void recordStream(const DataPtr&, Stream) override {}
  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    TORCH_CHECK(device == 3, "no such device");
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {
    stats.allocated_bytes[0].peak = stats.allocated_bytes[0].current;
    stats.reserved_bytes[0].peak = stats.reserved_bytes[0].current;
  }
};
Ours ours;
}
extern "C" void install() { SetAllocator(DeviceType::PrivateUse1, &ours); }
extern "C" void hold(int64_t allocated, int64_t reserved) {
  auto& a = ours.stats.allocated_bytes[0];
  auto& r = ours.stats.reserved_bytes[0];
  a.peak = std::max(a.peak, a.current = allocated);
  r.peak = std::max(r.peak, r.current = reserved);
}
extern "C" void stats(int64_t* out) {
  out[0] = ours.stats.allocated_bytes[0].peak;
  out[1] = ours.stats.reserved_bytes[0].peak;
  out[2] = ours.stats.allocated_bytes[0].current;
  out[3] = ours.stats.reserved_bytes[0].current;
}
extern "C" void reset() { ours.resetPeakStats(3); }
"""


@pytest.fixture(scope="module")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("allocator")
    (folder / "ours.cpp").write_text(ALLOCATOR)
    command = ["g++", *compiled_meter._arguments(), "ours.cpp", "-o", "ours.so", *compiled_meter._libraries()]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.PyDLL(str(folder / "ours.so"))
    library.install()
    library.hold.argtypes = [ctypes.c_int64, ctypes.c_int64]
    return library


@pytest.fixture(scope="module")
def edge() -> Any:
    with Compilation() as compilation:
        return compilation.load()


@pytest.fixture
def meter(allocator: Any, edge: Any, monkeypatch: pytest.MonkeyPatch) -> CompiledMeter:
    """A meter whose Python side reads the same allocator, as torch's does with CUDA's."""

    def nested(device: int) -> dict[str, Any]:
        out = (ctypes.c_int64 * 4)()
        allocator.stats(out)
        peak, peak_reserved, held, held_reserved = out
        return {
            "allocated_bytes": {"all": {"peak": peak, "current": held}},
            "reserved_bytes": {"all": {"peak": peak_reserved, "current": held_reserved}},
        }

    cuda = SimpleNamespace(get_device_properties=lambda device: None)
    binding = SimpleNamespace(_cuda_memoryStats=nested, _cuda_resetPeakMemoryStats=lambda device: allocator.reset())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=binding, __version__=torch.__version__))
    allocator.hold(0, 0)
    allocator.reset()
    return CompiledMeter(edge, 3, PRIVATE_USE)


def test_compiled_edges_read_what_torch_reads_and_begin_the_next_window(allocator: Any, meter: CompiledMeter) -> None:
    for number in range(COMPARED_EDGES + 10):
        allocator.hold(1000 + number, 5000)
        allocator.hold(100, 2**40)
        assert meter.edge() == (1000 + number, 2**40, 100, 2**40)
        assert meter.edge() == (100, 2**40, 100, 2**40)
    assert meter.problem is None
    assert meter.peak() == (100, 2**40)


def test_a_reading_that_differs_is_given_up(
    allocator: Any, meter: CompiledMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator.hold(7, 70)
    other = {
        "allocated_bytes": {"all": {"peak": 8, "current": 8}},
        "reserved_bytes": {"all": {"peak": 70, "current": 70}},
    }
    monkeypatch.setattr(meter, "_stats", lambda device: other)
    assert meter.edge() == (8, 70, 8, 70)
    assert meter.problem == "it read (7, 70, 7, 70) where torch has (8, 70, 8, 70)"
    assert meter.edge() == (8, 70, 8, 70)


@pytest.mark.parametrize("compared", [True, False])
def test_an_allocator_that_fails_is_read_by_python(allocator: Any, meter: CompiledMeter, compared: bool) -> None:
    allocator.hold(7, 70)
    if not compared:
        meter._to_compare = 0
    meter._device = 4
    assert meter.edge() == (7, 70, 7, 70)
    assert meter.problem == "it failed"


def test_a_device_without_such_an_allocator_is_an_error_and_no_crash(edge: Any) -> None:
    out = (ctypes.c_int64 * 4)()
    assert edge(0, 0, out) == 1  # the CPU
    assert edge(1, 0, out) == 1  # CUDA, in a torch without it


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("/nowhere/g++", "could not be started"), ("false", r"the C\+\+ compiler failed: status 1")],
)
def test_without_a_compiler_that_works_it_says_why(monkeypatch: pytest.MonkeyPatch, compiler: str, said: str) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(CompileError, match=said), Compilation() as compilation:
        compilation.load()


def test_a_torch_without_the_interface_is_named_by_the_compilers_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_meter, "SOURCE", "#include <c10/core/NotThere.h>\n")
    with (
        pytest.raises(CompileError, match=r"fatal error: c10/core/NotThere\.h"),
        Compilation() as compilation,
    ):
        compilation.load()


def test_a_trainer_that_fails_meanwhile_leaves_no_folder_and_no_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    compilation = Compilation()
    assert list(tmp_path.iterdir())
    with contextlib.suppress(RuntimeError), compilation:
        raise RuntimeError("the recipe")
    assert not list(tmp_path.iterdir())
    assert compilation._process.returncode is not None


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match="no C\\+\\+ compiler was found"):
        Compilation()


@pytest.mark.parametrize(
    ("compiler", "wanted", "meter"),
    [("", True, "compiled"), ("/nowhere/g++", True, "python"), ("false", True, "python"), ("", False, None)],
)
def test_a_bridge_trial_says_how_it_reads_memory(
    monkeypatch: pytest.MonkeyPatch, compiler: str, wanted: bool, meter: str | None
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(bridge, "CompiledMeter", lambda edge, device: (edge, device))
    facts: dict[str, Any] = {}
    used: list[Any] = []
    recorder: Any = SimpleNamespace(facts=lambda **more: facts.update(more), use=used.append)
    with bridge._compiled_beside({"compiled_meter": wanted}, recorder, 3):
        assert not facts
    assert facts.get("meter") == meter
    assert ("notes" in facts) == (meter == "python")
    assert [device for _, device in used] == ([3] if meter == "compiled" else [])


def test_a_trainer_that_fails_beside_the_compiler_fails_for_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(ValueError, match="recipe") as raised, bridge._compiled_beside({}, Any, 0):
        raise ValueError("recipe")
    assert raised.value.__context__ is None
