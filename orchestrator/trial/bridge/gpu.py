"""The GPU of a rank: its limit, who else holds its memory, and its clocks."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import time
from typing import Any

CONTEXT_ALLOWANCE = 1_500_000_000
"""Bytes that this process's own CUDA context and libraries may hold before the first tensor."""

_QUERY = (
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "temperature.gpu",
    "power.draw",
    "clocks_throttle_reasons.active",
    "driver_version",
)
_REASONS = {
    0x0000000000000002: "applications_clocks_setting",
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake_slowdown",
    0x0000000000000100: "display_clock_setting",
}
"""Bits of NVML's clocks event reasons (nvml.h, nvmlClocksEventReasons); idle (bit 0) is no throttling."""


class SharedGpuError(RuntimeError):
    """Another process holds memory of the GPU that this rank was given."""


class MemoryLimitError(ValueError):
    """A memory limit that this GPU cannot have."""


class NoGpuError(RuntimeError):
    """This rank has no GPU."""


def take(device: int) -> None:
    """Make `device` this rank's GPU.

    Raises:
        NoGpuError: there is none of that number.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device < count:
        torch.cuda.set_device(device)
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    among = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    if count:
        found = f"local rank {device} has no GPU: this node shows {count}{among}; ask for one a rank"
    elif torch.version.cuda is None:
        found = (
            f"No CUDA GPUs are available to torch {torch.__version__}, which is built without CUDA: install one with"
        )
    else:
        found = (
            f"No CUDA GPUs are available to torch {torch.__version__}{among}: does nvidia-smi show them on this node?"
        )
    raise NoGpuError(f"{found}. trainer=mcore_cpu needs none")


def wait_until_empty(device: int, seconds: float) -> float:
    """Wait until nobody else holds memory of the device. Returns the seconds waited.

    Raises:
        SharedGpuError: somebody still does after `seconds`.
    """
    import torch

    started = time.monotonic()
    while True:
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device) - CONTEXT_ALLOWANCE
        waited = time.monotonic() - started
        if others <= 0:
            return waited
        if waited >= seconds:
            raise SharedGpuError(
                f"GPU {device} is not empty: other processes hold about {(others + CONTEXT_ALLOWANCE) / 1e9:.1f} of "
                f"{total / 1e9:.1f} GB, still after {waited:.0f} s; end them, or ask for exclusive nodes"
            )
        time.sleep(0.5)


def limit_memory(device: int, limit: int | None) -> None:
    """Let this process's allocator hold at most `limit` bytes of the device (reserved, not just allocated).

    Raises:
        MemoryLimitError: the limit is above what the device has.
    """
    if limit is None:
        return
    import torch

    total = torch.cuda.get_device_properties(device).total_memory
    if limit > total:
        raise MemoryLimitError(
            f"trainer.memory_limit_gb={limit / 1e9:g} is above the {total / 1e9:.1f} GB of this GPU; "
            "set it lower, or null"
        )
    torch.cuda.set_per_process_memory_fraction(limit / total, device)


def describe(device: int) -> dict[str, Any]:
    """Kind, name, uuid and capacity (bytes) of the device, as a record's `device` has them."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    return {
        "kind": "cuda",
        "name": properties.name,
        "uuid": None if uuid is None else f"GPU-{uuid}",
        "capacity_bytes": int(properties.total_memory),
    }


class ClockReading:
    """One question to nvidia-smi, asked in the background while the GPU works, and read later."""

    def __init__(self, uuid: str | None) -> None:
        self._process: subprocess.Popen[str] | None = None
        if uuid is not None and shutil.which("nvidia-smi"):
            command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
            )

    def result(self) -> dict[str, Any]:
        """`clocks` (MHz, degrees Celsius, watts) and `throttle_reasons`; empty where nvidia-smi has no answer."""
        if self._process is None:
            return {}
        try:
            output, _ = self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return {}
        return parse_clocks(output)


def parse_clocks(output: str) -> dict[str, Any]:
    """The answer of nvidia-smi to the question above."""
    rows = [row for row in csv.reader(output.splitlines(), skipinitialspace=True) if len(row) == len(_QUERY)]
    if not rows:
        return {}
    values = dict(zip(_QUERY, rows[0], strict=True))
    clocks = {
        "sm_mhz": _number(values["clocks.sm"]),
        "memory_mhz": _number(values["clocks.mem"]),
        "max_sm_mhz": _number(values["clocks.max.sm"]),
        "max_memory_mhz": _number(values["clocks.max.mem"]),
        "temperature_c": _number(values["temperature.gpu"]),
        "power_w": _number(values["power.draw"]),
    }
    return {
        "clocks": {name: value for name, value in clocks.items() if value is not None},
        "throttle_reasons": _reasons(values["clocks_throttle_reasons.active"]),
        "driver": values["driver_version"],
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _reasons(text: str) -> list[str]:
    try:
        bits = int(text, 16)
    except ValueError:
        return []
    return [name for bit, name in _REASONS.items() if bits & bit]
