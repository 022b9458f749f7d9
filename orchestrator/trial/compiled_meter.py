"""The allocator's counters through a few lines of C++, compiled while a trial imports its framework.

What torch offers Python builds a dictionary of 150 counters at each call: 15 us in a loop, and four times that in
training, where other work takes the caches. The same counters are at hand in torch's own C++ interface
(`c10::DeviceAllocator`, c10/core/CachingDeviceAllocator.h, since torch 2.9). It needs a C++ compiler on the node, as
Triton does; without one, or with an older torch, torch's Python interface is read as before.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.trial.meter import CudaMeter

CUDA = 1
"""`c10::DeviceType::CUDA` (torch/headeronly/core/DeviceType.h)."""
COMPILE_SECONDS = 30.0
"""How long a compiler may take. It takes two, beside imports that take ten times that."""
COMPARED_EDGES = 64
"""The first edges are read both ways: whoever disagrees with torch's Python interface is not asked again."""

SOURCE = r"""
#include <c10/core/CachingDeviceAllocator.h>
#include <cstdint>

extern "C" int edge(int type, int device, int64_t* out) noexcept {
  try {
    const auto index = static_cast<c10::DeviceIndex>(device);
    auto* allocator = c10::getDeviceAllocator(static_cast<c10::DeviceType>(type));
    const auto stats = allocator->getDeviceStats(index);
    const auto& allocated = stats.allocated_bytes[0];  // StatType::AGGREGATE
    const auto& reserved = stats.reserved_bytes[0];
    out[0] = allocated.peak;
    out[1] = reserved.peak;
    out[2] = allocated.current;
    out[3] = reserved.current;
    if (out[0] != out[2] || out[1] != out[3]) allocator->resetPeakStats(index);
    return 0;
  } catch (...) {
    return 1;
  }
}
"""

_Four = ctypes.c_int64 * 4


class CompileError(RuntimeError):
    """There is no compiled reading here. The message says why."""


class Compilation:
    """A compiler at work in the background, in a private folder. As a context it leaves neither behind."""

    def __init__(self) -> None:
        """Start it. Torch must be imported already.

        Raises:
            CompileError: there is no compiler, or no folder for it.
        """
        compiler = (
            shlex.split(os.environ.get("CXX", ""))
            or [found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))][:1]
        )
        if not compiler:
            raise CompileError("no C++ compiler was found (CXX, c++, g++, clang++)")
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="orchestrator-edge-"))
            (self._folder / "edge.cpp").write_text(SOURCE)
            self._process = subprocess.Popen(
                [*compiler, *_arguments(), "edge.cpp", "-o", "edge.so", *_libraries()],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(self._folder / "said").open("wb"),
            )
        except OSError as error:
            self._remove()
            raise CompileError(f"the C++ compiler could not be started: {error}") from error

    def load(self) -> Any:
        """The function `edge`, when the compiler is done.

        Raises:
            CompileError: it failed, took too long, or what it made cannot be loaded.
        """
        try:
            status = self._process.wait(COMPILE_SECONDS)
            if status != 0:
                said = (self._folder / "said").read_text(errors="replace").splitlines()
                first = next((line for line in said if "error" in line), said[0] if said else f"status {status}")
                raise CompileError(f"the C++ compiler failed: {first[:300]}")
            # PyDLL keeps the interpreter's lock: giving it up would cost more than the call.
            edge = ctypes.PyDLL(str(self._folder / "edge.so")).edge
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"the C++ compiler took longer than {COMPILE_SECONDS:g} s") from error
        except OSError as error:
            raise CompileError(f"what the C++ compiler made cannot be loaded: {error}") from error
        edge.argtypes, edge.restype = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Four)), ctypes.c_int
        return edge

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(getattr(self, "_folder", ""), ignore_errors=True)


class CompiledMeter(CudaMeter):
    """As `CudaMeter`, with edges read by compiled code for as long as both agree."""

    def __init__(self, edge: Any, device: int | None = None, device_type: int = CUDA) -> None:
        super().__init__(device)
        self._edge: Any = edge
        self._type = device_type
        self._out = _Four()
        self._to_compare = COMPARED_EDGES
        self.problem: str | None = None
        """Why compiled code is not asked any more."""

    def edge(self) -> tuple[int, int, int, int]:
        if self._to_compare:
            return self._compared()
        if self._edge(self._type, self._device, self._out):
            return self._by_python("it failed")
        peak, peak_reserved, held, held_reserved = self._out
        return peak, peak_reserved, held, held_reserved

    def _compared(self) -> tuple[int, int, int, int]:
        if self.problem is not None:
            return super().edge()
        expected = (*self.peak(), *self.current())
        if self._edge(self._type, self._device, self._out):
            return self._by_python("it failed")
        found = tuple(self._out)
        if found != expected:
            return self._by_python(f"it read {found} where torch has {expected}")
        if self.peak() != self.current():
            return self._by_python("it did not start the next window")
        self._to_compare -= 1
        return expected

    def _by_python(self, problem: str) -> tuple[int, int, int, int]:
        self.problem, self._to_compare = problem, COMPARED_EDGES
        return super().edge()


def _arguments() -> list[str]:
    import torch

    include = Path(torch.__file__).parent / "include"
    abi = int(torch.compiled_with_cxx11_abi())
    return ["-O2", "-std=c++20", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{include}"]


def _libraries() -> list[str]:
    import torch

    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10"]
