"""How long two GPUs stay taken after rank 1 alone failed: under our supervisor, and under bare torchrun.

Needs two GPUs and Megatron Bridge. Ours is the product's own command on `study=moonlight_8l_tp2`; the rival is the
same trial specification and the same Bridge call under `torchrun`, without recorder and supervisor. The faults are
those of `rank_faults`: rank 1 runs out of memory, or sleeps (ours alone: a bare run waits for NCCL's ten minutes).
Prints one JSON object: for each, the seconds from the fault until each GPU was down to what it held before (within
100 MB, looked at every 0.1 s), and until the command ended; with ours, what each rank's record says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
IDLE_MB = 100
GIVE_UP_SECONDS = 150.0
STALL_SECONDS = 60
OURS = (
    "-m study=moonlight_8l_tp2 study.candidates=[] recompute=control study.name={name} "
    "trainer.forward_step=rank_faults.{name} trainer.stall_seconds={stall} "
    "model.gradient_accumulation_fusion=false cluster.retries=0 results_dir={results}"
)


def main(results: Path) -> None:
    found: dict[str, Any] = {"benchmark": "free_gpus", "unit": "s", "stall_seconds": STALL_SECONDS}
    with tempfile.TemporaryDirectory(prefix="free-gpus-") as temporary:
        folder = Path(temporary)
        found["out_of_memory"] = {"supervised": supervised("out_of_memory_on_rank_1", results, folder)}
        specs = sorted(results.glob("runs/*/*/spec.json"))
        if not specs:
            raise SystemExit(f"no trial was run in {results}: {found['out_of_memory']['supervised'].get('tail')}")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        found["out_of_memory"]["torchrun"] = measured([*torchrun, str(HERE / "bare_bridge.py"), str(specs[0])], folder)
        found["sleep"] = {"supervised": supervised("sleep_on_rank_1", results, folder)}
    print(json.dumps(found))


def supervised(name: str, results: Path, folder: Path) -> dict[str, Any]:
    """A trial of the fault of that name, by our own command."""
    before = set(results.glob("runs/*/*/rank-*.json"))
    arguments = OURS.format(name=name, stall=STALL_SECONDS, results=results).split()
    found = measured([sys.executable, "-m", "orchestrator", *arguments], folder)
    return found | {"ranks": [ending(path) for path in sorted(set(results.glob("runs/*/*/rank-*.json")) - before)]}


def measured(command: list[str], folder: Path) -> dict[str, Any]:
    """Run a command in which rank 1 fails, with both GPUs watched."""
    fault = folder / "fault"
    fault.unlink(missing_ok=True)
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "RANK_FAULT_FILE": str(fault)}
    with UsedMemory() as memory, (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GIVE_UP_SECONDS)
        ended = time.time()
        time.sleep(1.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        tail = output.read()[-1500:]
    if not fault.exists():
        return {"fault": None, "exit": process.poll(), "tail": tail}
    struck = float(fault.read_text())
    return {
        "gpus_free": [round(when - struck, 2) if when else None for when in memory.freed_after(struck)],
        "command_ended": round(ended - struck, 2),
        "exit": process.poll(),
    }


class UsedMemory:
    """What nvidia-smi says that each GPU holds, ten times a second."""

    def __enter__(self) -> UsedMemory:
        query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits", "-lms", "100"]
        self._process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        self._seen: dict[int, list[tuple[float, int]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        time.sleep(1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            index, used = line.split(",")
            self._seen.setdefault(int(index), []).append((time.time(), int(used)))

    def freed_after(self, struck: float) -> list[float | None]:
        """When each GPU was first idle for good after `struck`; None for one that was not."""
        freed = []
        for _, readings in sorted(self._seen.items()):
            idle = readings[0][1] + IDLE_MB
            busy = [when for when, used in readings if used > idle]
            last = max(busy, default=struck)
            freed.append(next((when for when, _ in readings if when > max(last, struck)), None))
        return freed


def ending(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text())
    exception = record["exception"] or {}
    return {key: record[key] for key in ("rank", "ended", "exit_code", "signal")} | {
        "exception": exception.get("type"),
        "stage": exception.get("stage"),
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python {sys.argv[0]} RESULTS_DIR (a new folder for our trial)")
    main(Path(sys.argv[1]))
