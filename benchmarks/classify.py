"""`classify` on a large log, beside `grep -E` with the same words on the same file, taken in turns.

    python benchmarks/classify.py [--gigabytes 1] [--runs 3] [--dense]

The log is that of eight ranks: progress lines, chatter, now and then a warning, and at the end one rank's traceback in
the middle of the others' lost connections. Prints one JSON line; `classify_s` (12 s for 1 GB on two cores) and
`peak_mb` (150 MB over all its processes, shared pages counted twice) are the claims. With `--dense` most lines are such
as have to be looked at, which is the worst that a log can do, and no time is claimed for it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit"))

from wordings import BACKWARD, OOM, WATCHDOG, prefixed, raised

from orchestrator.outcome.log.needles import CAPITALS, NUMBERS, SMALL

_RANKS = 8
_CULPRIT = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dense", action="store_true", help="a log in which most lines have words of a failure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        _write(log, round(given.gigabytes * 1e9), _dense_step if given.dense else _one_step)
        classify = [sys.executable, "-m", "orchestrator", "classify", "--json", str(log)]
        grep = ["grep", "-a", "-c", "-E", _pattern(), str(log)]
        _seconds(grep)
        timed = [(_seconds(grep), _seconds_and_peak(classify)) for _ in range(given.runs)]
        found = json.loads(subprocess.run(classify, check=True, capture_output=True).stdout)
        assert (found["label"], found["rank"]) == ("OOM-bwd", _CULPRIT), found
        size = log.stat().st_size
    greps = [seconds for seconds, _ in timed]
    seconds = [one[0] for _, one in timed]
    print(
        json.dumps(
            {
                "benchmark": "classify",
                "dense": given.dense,
                "bytes": size,
                "runs": given.runs,
                "classify_s": round(statistics.median(seconds), 2),
                "classify_cpu_s": round(statistics.median(one[2] for _, one in timed), 2),
                "peak_mb": round(max(one[1] for _, one in timed) / 1e6, 1),
                "grep_s": round(statistics.median(greps), 2),
                "noise_s": round(max(max(seconds) - min(seconds), max(greps) - min(greps)), 2),
                "cpus": len(os.sched_getaffinity(0)),
                "load": round(os.getloadavg()[0], 1),
            }
        )
    )


def _write(path: Path, size: int, one_step: Callable[[int], bytes]) -> None:
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:3456"
    end = [WATCHDOG.format(rank=0)]
    end += [prefixed(f"[rank{rank}]: ", raised(OOM if rank == _CULPRIT else lost, *BACKWARD)) for rank in range(_RANKS)]
    end.append("srun: error: node01: task 3: Exited with exit code 1")
    tail = ("\n".join(end) + "\n").encode()
    written = step = 0
    with path.open("wb") as stream:
        while written < size - len(tail):
            step += 1
            written += stream.write(one_step(step))
        stream.write(tail)


def _one_step(step: int) -> bytes:
    clock = f"2025-10-22 {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}"
    lines = [
        f" [{clock}] iteration {step:8}/ 5000000 | consumed samples: {step * 16:12} | elapsed time per iteration (ms): "
        f"{450 + step % 17}.3 | throughput per GPU (TFLOP/s/GPU): {70 + step % 9}.1 | learning rate: 1.0E-04 | global "
        f"batch size:    16 | lm loss: {2 + step % 13 / 100:.6E} | loss scale: 1.0 | grad norm: {1 + step % 7 / 10} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    ]
    lines += [
        f"[rank{rank}]: {clock} loader took a batch in {step % 31} ms, {rank + 3} waiting" for rank in range(_RANKS)
    ]
    if step % 200 == 0:
        lines.append(
            f"[rank1]: {clock} WARNING retrying a read that failed with error 11 (Resource temporarily unavailable)"
        )
    return ("\n".join(lines) + "\n").encode()


def _dense_step(step: int) -> bytes:
    """A step among workers that keep failing, kernels that keep asserting and links that keep flapping."""
    lines = [
        f"node01:6727:{7000 + rank} [{rank}] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        f"10.0.0.{rank}<53249> with error 12, opcode {step % 7}, len 0, vendor err 129 (Send)"
        for rank in range(_RANKS)
    ]
    lines += [
        f"2025-10-22 12:{step // 60 % 60:02}:{step % 60:02} ERROR worker {rank}: request {step} failed: Error code 7, "
        "will be tried again"
        for rank in range(_RANKS)
    ]
    lines += [
        f"/opt/loader.py:{70 + rank}: UserWarning: Error {step} in a sample, Failed to decode\n  warnings.warn("
        for rank in range(_RANKS)
    ]
    return _one_step(step) + ("\n".join(lines) + "\n").encode()


def _pattern() -> str:
    """The words that `classify` looks for, as `grep -E` writes them."""
    words = [CAPITALS.pattern, *SMALL, *(number.pattern for number in NUMBERS)]
    return "|".join(word.decode() for word in words).replace(r"\d", "[0-9]").replace("(?:", "(")


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    # Not into /dev/null: grep then ends at the first line that it finds.
    subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"})
    return time.perf_counter() - started


def _seconds_and_peak(command: list[str]) -> tuple[float, int, float]:
    """Wall seconds, the most bytes that the command and its children held at once, and their processor seconds."""
    started, used = time.perf_counter(), _processor_seconds()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _held(process.pid))
            time.sleep(0.02)
    assert process.returncode == 0
    return time.perf_counter() - started, peak, _processor_seconds() - used


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _held(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_held(int(child)) for child in children)


if __name__ == "__main__":
    main()
