"""`kill -9` of the command that submits, and of the driver, between every two of their steps."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bed import Bed, ask, labels, submit, until

from orchestrator.dispatch.handover import settle
from orchestrator.dispatch.slurm.record import OPEN, read_submission
from orchestrator.dispatch.submit import batch_dirs
from orchestrator.vocabulary import is_result

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
NAMES = ("control", "mlp")
SMALL = {
    "world_size": 1,
    "cluster": {"gpus_per_node": 1, "exclusive": False, "mem": "2000", "cpus_per_task": 1, "requeue": False},
}
"""Many of these fit on a node at once."""


def command(results: Path, kill: dict[str, str]) -> subprocess.Popen[bytes]:
    """The submitting command as a process of its own: it settles, then submits what has no result."""
    script = (
        f"import sys; sys.path.insert(0, {str(HERE)!r});"
        "from pathlib import Path; from test_kill import run_command; run_command(Path(sys.argv[1]))"
    )
    path = os.pathsep.join([str(HERE / "killed"), os.environ["PYTHONPATH"]])
    return subprocess.Popen(
        [sys.executable, "-c", script, str(results), "submitting-command"],
        env={**os.environ, "PYTHONPATH": path, **kill},
    )


def run_command(results: Path) -> None:
    settle(results)
    missing = [name for name in NAMES if not has_result(results, name)]
    if missing:
        submit(results, *missing, **SMALL)


def has_result(results: Path, name: str) -> bool:
    return any(is_result(label or "") for label in labels(results, ask(results, name, **SMALL).trial))


def is_quiet(results: Path) -> bool:
    """No job of this folder waits or runs, as far as anybody knows."""
    settle(results)
    found = [read_submission(folder) for folder in batch_dirs(results)]
    return not any(one is not None and one.state in OPEN for one in found)


def steps(results: Path, word: str, tmp_path: Path) -> int:
    """How many steps there are when nobody is killed."""
    count = tmp_path / "count"
    process = command(results, {"KILL_AT": "0", "KILL_WORD": word, "KILL_COUNT": str(count)})
    assert process.wait(60) == 0
    until(lambda: is_quiet(results), 60)
    assert has_result(results, "mlp")
    return len(count.read_text().splitlines())


def run_killed(tmp_path: Path, word: str, points: list[int]) -> list[Path]:
    """One results folder a point, all at the same time; then the same command again until nothing is missing."""
    folders = [tmp_path / f"orchestrator-{point}" for point in points]
    waiting = []
    for folder, point in zip(folders, points, strict=True):
        waiting.append(command(folder, {"KILL_AT": str(point), "KILL_WORD": word}))
        if len(waiting) == 3:
            waiting.pop(0).wait(60)
    for process in waiting:
        process.wait(60)
    for _ in range(3):
        deadline = time.monotonic() + 180
        for folder in folders:
            until(lambda folder=folder: is_quiet(folder), deadline - time.monotonic())
        missing = [folder for folder in folders if not all(has_result(folder, name) for name in NAMES)]
        if not missing:
            break
        for folder in missing:
            assert command(folder, {}).wait(60) == 0
    return folders


@pytest.mark.parametrize("word", ["submitting-command", "submitit.core._submit"])
def test_every_trial_has_one_result_whenever_its_process_was_killed(
    bed: Bed, results: Path, tmp_path: Path, word: str
) -> None:
    count = steps(tmp_path / "orchestrator-whole", word, tmp_path)
    assert count > 10
    folders = run_killed(tmp_path, word, list(range(1, count + 1)))
    trial = ask(results, "mlp", **SMALL).trial
    for folder in folders:
        found = [label for label in labels(folder, trial) if is_result(label or "")]
        assert found == ["pass"], f"{folder.name}: {labels(folder, trial)}"
        assert "failed:launch" not in labels(folder, trial), f"{folder.name}: a killed driver is no failed launch"
