"""The main job through its own command, with the real trainer on two ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.integration

SMALL = ["training.seq_length=32", "training.global_batch_size=4", "training.train_iters=4"]
WINDOW = "training.steady_window=[3,4]"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for process in processes_of(tmp_path):
        process.kill()


def processes_of(folder: Path) -> list[psutil.Process]:
    """Drivers, supervisors and trainers that work below a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


def start(here: Path, *arguments: str, **how: Any) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != "ORCHESTRATOR_DB"}
    command = [sys.executable, "-m", "orchestrator", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=here, env=environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=_listen, **how
    )


def _listen() -> None:
    """As in a terminal: whoever runs the tests in the background has these signals ignored, and children inherit it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run(here: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(here, *arguments)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def trials(here: Path) -> dict[str, tuple[str, str | None]]:
    with sqlite3.connect(f"file:{here}/results/store.sqlite?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT name, state, label FROM v_trials").fetchall()
    return {name: (state, label) for name, state, label in rows}


def attempts(here: Path) -> list[str]:
    return sorted(str(path.relative_to(here / "results" / "runs")) for path in here.glob("results/runs/*/*"))


def wait_for_attempt(here: Path, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not list(here.glob("results/runs/*/*/spec.json")):
        assert time.monotonic() < deadline, "no trial was started"
        time.sleep(0.05)


def wait_until_gone(here: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while processes_of(here / "results"):
        assert time.monotonic() < deadline, f"still there: {processes_of(here / 'results')}"
        time.sleep(0.05)


def test_a_grid_runs_what_is_valid_lists_the_rest_and_runs_nothing_twice(here: Path) -> None:
    grid = ["-m", "recompute_modules=[],[moe],[mo]", *SMALL, WINDOW, "study.name=mine"]
    code, out, err = run(here, *grid)
    assert code == 0, err
    assert "3 trials, 2 to run, 1 rejected" in err
    assert "did you mean moe?" in err
    assert "[moe]: started" in err
    assert {line.split()[0] for line in out.splitlines()[2:5]} == {"[]", "moe", "mo"}
    assert trials(here) == {"[]": ("ended", "pass"), "[moe]": ("ended", "pass"), "[mo]": ("rejected", "rejected")}
    first = attempts(here)

    code, out, err = run(here, *grid, "--json")
    assert code == 0, err
    assert "0 to run, 2 known already, 1 rejected" in err
    assert attempts(here) == first
    shown = json.loads(out)
    counts = shown["plan"]["counts"]
    assert (counts["new"], counts["known"], counts["rejected"]) == (0, 2, 1)
    assert len(shown["comparison"]["groups"]) == 1


def test_trials_that_fail_are_answers_and_stop_no_other(here: Path) -> None:
    code, out, err = run(here, "-m", "trainer.memory_limit_gb=0.001,1", *SMALL, WINDOW)
    assert code == 0, err
    labels = {name: label for name, (_, label) in trials(here).items()}
    assert labels == {"memory_limit_gb=0.001 []": "OOM-setup", "memory_limit_gb=1 []": "pass"}
    assert "OOM-setup" in out


def test_an_interrupt_cancels_the_study_and_the_same_command_runs_what_is_missing(here: Path) -> None:
    long = ["-m", "recompute_modules=[],[moe]", *SMALL[:2], "training.train_iters=100000", WINDOW]
    process = start(here, *long)
    wait_for_attempt(here)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "cancelling" in err
    assert out.startswith("interrupted: study "), out
    assert "failed:cancelled" in out
    assert "There is no control" not in out
    wait_until_gone(here, 5.0)
    assert trials(here) == {"[]": ("ended", "failed:cancelled"), "[moe]": ("planned", None)}

    code, out, err = run(here, *long, "dry_run=true")
    assert code == 0, err
    assert "2 to run" in out


def test_a_closed_terminal_leaves_the_study_running(here: Path) -> None:
    command = [*SMALL, WINDOW]
    process = start(here, *command, start_new_session=True)
    wait_for_attempt(here)
    os.killpg(process.pid, signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGHUP
    code, out, err = run(here, *command)
    assert code == 0, err
    assert "pass" in out
    assert attempts(here) == [attempts(here)[0]]
    assert trials(here) == {"[]": ("ended", "pass")}


def test_a_command_says_what_it_did_not_start_behind_a_broken_control_and_runs_it_once_mended(here: Path) -> None:
    broken = here / "shadow" / "megatron" / "core"
    broken.mkdir(parents=True)
    (broken.parent / "__init__.py").touch()
    (broken / "__init__.py").write_text('raise ImportError("no megatron here")')
    asked = ["-m", "recompute_modules=[],[core_attn],[mla_up_proj]", *SMALL, WINDOW]
    asked.append(f"trainer.environment={{PYTHONPATH: {here / 'shadow'}}}")
    status, _, err = run(here, *asked)
    assert status == 1
    assert "not started: [mla_up_proj]. The control and a trial behind it failed in the same way" in err
    failed = ("ended", "failed:import_error")
    assert trials(here) == {"[]": failed, "[core_attn]": failed, "[mla_up_proj]": ("planned", None)}
    assert "not run yet: held back" in run(here, "compare")[1]
    status, out, _ = run(here, "status")
    assert "held back  1 was not started" in out
    assert "[mla_up_proj]" in out
    shutil.rmtree(broken.parent)
    status, _, err = run(here, *asked)
    assert status == 0, err
    assert trials(here)["[mla_up_proj]"] == ("ended", "pass")
