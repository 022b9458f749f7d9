"""A trainer that does what a script says: enters stages, then ends in every way that a trainer can.

`spec.trainer` is `scripted:train` with this folder on PYTHONPATH, and `config["script"]` a list of steps, each a list
of a command and its arguments. No torch, so a trial takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from orchestrator.records.spec import TrialSpec
from orchestrator.trial.meter import Meter
from orchestrator.trial.recorder import Recorder
from orchestrator.vocabulary import Stage


class CountedMeter(Meter):
    """Bytes that the script says it holds."""

    def __init__(self) -> None:
        self.held = self.most = 0

    def hold(self, size: int) -> None:
        self.held += size
        self.most = max(self.most, self.held)

    def peak(self) -> tuple[int, int]:
        return self.most, self.most

    def reset(self) -> None:
        self.most = self.held

    def current(self) -> tuple[int, int]:
        return self.held, self.held

    def capacity(self) -> int | None:
        return None

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        return 1, 2


class ScriptedError(RuntimeError):
    """What the script raises."""


def train(spec: TrialSpec, recorder: Recorder, rank: int, world_size: int, local_rank: int) -> None:
    only = spec.config.get("only_rank")
    script = spec.config["script"] if only in (None, rank) else spec.config.get("others", [["sleep", 60]])
    meter = CountedMeter()
    recorder.use(meter)
    Script(spec, recorder, meter).run(script)


class Script:
    def __init__(self, spec: TrialSpec, recorder: Recorder, meter: CountedMeter) -> None:
        self.spec = spec
        self.recorder = recorder
        self.meter = meter
        self.open = contextlib.ExitStack()

    def run(self, steps: list[list[Any]]) -> None:
        """A step whose last argument is a list runs that list inside of it."""
        for command, *arguments in steps:
            getattr(self, "do_" + command)(*arguments)

    def do_in(self, stage: str, inside: list[list[Any]]) -> None:
        with self.recorder.stage(Stage(stage)):
            self.run(inside)

    def do_iterations(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.recorder.begin_iteration(number)
            self.recorder.microbatch(0)
            for stage in (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER_STEP):
                with self.recorder.stage(stage):
                    pass
            self.recorder.end_iteration(1000.0, loss=1.0 / number, grad_norm=0.5)

    def do_begin(self, number: int, microbatch: int = 0) -> None:
        self.recorder.begin_iteration(number)
        self.recorder.microbatch(microbatch)

    def do_measured(self) -> None:
        self.recorder.optimizer_state_exists()
        self.recorder.measured()

    def do_hold(self, size: int) -> None:
        self.meter.hold(size)

    def do_raise(self, message: str) -> None:
        raise ScriptedError(message)

    def do_try(self, inside: list[list[Any]]) -> None:
        with contextlib.suppress(ScriptedError):
            self.run(inside)

    def do_hang_in_cleanup(self, inside: list[list[Any]]) -> None:
        try:
            self.run(inside)
        finally:
            time.sleep(600)

    def do_exit(self, status: Any) -> None:
        sys.exit(status)

    def do_os_exit(self, status: int) -> None:
        os._exit(status)

    def do_kill_self(self, name: str) -> None:
        os.kill(os.getpid(), signal.Signals[name])
        time.sleep(60)

    def do_segfault(self) -> None:
        ctypes.string_at(0)

    def do_threads(self, count: int) -> None:
        """Start threads that wait for ever, twenty calls deep, as data loaders and process groups do."""

        def wait(depth: int) -> None:
            if depth:
                wait(depth - 1)
            else:
                threading.Event().wait()

        for _ in range(count):
            threading.Thread(target=wait, args=(20,), daemon=True).start()

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_nap(self) -> None:
        """As libraries that wait for a device or another rank do."""
        while True:
            time.sleep(0.005)

    def do_call_itself(self, name: str) -> None:
        """Take a name that ends in bytes that are no text."""
        ctypes.CDLL(None).prctl(15, name.encode() + b"\xff\xfe", 0, 0, 0)  # PR_SET_NAME

    def do_ignore(self, name: str) -> None:
        signal.signal(signal.Signals[name], signal.SIG_IGN)

    def do_grandchildren(self) -> None:
        """Processes that would outlive this one: a child, one in a session of its own, and an orphan in its own."""
        for own_session in (False, True):
            sleeper = subprocess.Popen(
                ["sleep", "600"], start_new_session=own_session, stdout=sys.stdout, stderr=sys.stderr
            )
            self.note(f"grandchild-{int(own_session)}", str(sleeper.pid))
        orphan = subprocess.run(
            ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], check=True, capture_output=True, text=True
        )
        self.note("grandchild-2", orphan.stdout.strip())

    def do_print(self, text: str) -> None:
        print(text)

    def do_complain(self, text: str) -> None:
        print(text, file=sys.stderr)

    def do_note(self, name: str, text: str) -> None:
        self.note(name, text)

    def do_note_environment(self, name: str) -> None:
        self.note(name, os.environ.get(name, ""))

    def do_facts(self, facts: dict[str, Any]) -> None:
        self.recorder.facts(**facts)

    def note(self, name: str, text: str) -> None:
        """Leave a file for the test to find."""
        path = Path(self.spec.run_dir) / name
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)
