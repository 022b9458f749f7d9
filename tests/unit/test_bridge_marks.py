"""Marking a framework's functions as stages, on a small framework that is made here."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.beacon import BeaconReader, BeaconWriter
from orchestrator.trial.bridge import seams
from orchestrator.trial.bridge.seams import MissingSeamError, Place, Seam
from orchestrator.trial.meter import NullMeter
from orchestrator.trial.recorder import Recorder
from orchestrator.vocabulary import Stage


class Framework(types.ModuleType):
    """A module with a schedule, an optimizer of optimizers and a checkpoint, as Megatron Core has them."""

    def __init__(self) -> None:
        super().__init__("made_up_framework")

        @contextlib.contextmanager
        def _fork_rng() -> Iterator[None]:
            yield

        def forward_step(data: str, current_microbatch: int | None = None) -> str:
            return data

        def backward_step(error: Exception | None = None) -> None:
            with self._fork_rng(), self._fork_rng():
                if error:
                    raise error

        class Optimizer:
            def step(self) -> str:
                return "stepped"

        class Chained(Optimizer):
            def step(self) -> str:
                return Optimizer().step()

        self._fork_rng, self.forward_step, self.backward_step = _fork_rng, forward_step, backward_step
        self.Optimizer, self.Chained = Optimizer, Chained


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Framework:
    made = Framework()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    beacon = BeaconWriter(tmp_path / "rank-00000.beacon", 2)
    made = Recorder(beacon, tmp_path / "rank-00000.facts.json", NullMeter(), (1, 2))
    made.begin_iteration(1)
    return made


def entries(tmp_path: Path) -> dict[Stage, int]:
    return {row.stage: row.entries for row in BeaconReader(tmp_path / "rank-00000.beacon").stages()}


def mark(recorder: Recorder, stage: Stage, name: str, **how: Any) -> None:
    seam = Seam(stage, (Place("made_up_framework", name),), **how)
    for place in seams._there(seam, "this revision"):
        seams._replace(place, lambda function: seams._marked(recorder, seam, function))


def test_a_chained_optimizer_is_one_step(framework: Framework, recorder: Recorder, tmp_path: Path) -> None:
    for name in ("Optimizer.step", "Chained.step"):
        mark(recorder, Stage.OPTIMIZER_STEP, name, outermost=True)
    assert framework.Chained().step() == "stepped"
    recorder.finished()
    assert entries(tmp_path)[Stage.OPTIMIZER_STEP] == 1


def test_nested_forks_inside_backward_are_one_replay(framework: Framework, recorder: Recorder, tmp_path: Path) -> None:
    mark(recorder, Stage.BACKWARD, "backward_step")
    framework._fork_rng = seams._replay(recorder, framework._fork_rng)
    framework.backward_step()
    recorder.finished()
    found = entries(tmp_path)
    assert (found[Stage.BACKWARD], found[Stage.REPLAY]) == (1, 1)


def test_an_error_in_a_replay_is_placed_there_and_leaves_no_stage_behind(
    framework: Framework, recorder: Recorder
) -> None:
    mark(recorder, Stage.BACKWARD, "backward_step")
    framework._fork_rng = seams._replay(recorder, framework._fork_rng)
    error = MemoryError("full")
    with pytest.raises(MemoryError):
        framework.backward_step(error)
    assert recorder.depth == 0
    assert error.__orchestrator_place__.stage is Stage.REPLAY  # type: ignore[attr-defined]


def test_forward_says_its_microbatch(framework: Framework, recorder: Recorder, tmp_path: Path) -> None:
    framework.forward_step = seams._forward(recorder, framework.forward_step)
    assert framework.forward_step("tokens", current_microbatch=3) == "tokens"
    assert BeaconReader(tmp_path / "rank-00000.beacon").last.microbatch == 3


def test_a_missing_seam_is_an_error_that_names_revision_and_stage(framework: Framework, recorder: Recorder) -> None:
    with pytest.raises(MissingSeamError, match=r"this revision .*backward.*made_up_framework\.renamed"):
        mark(recorder, Stage.BACKWARD, "renamed")


def test_an_optional_seam_may_be_absent(framework: Framework, recorder: Recorder) -> None:
    mark(recorder, Stage.BACKWARD, "renamed", required=False)


def test_the_first_place_that_exists_is_marked(framework: Framework) -> None:
    places = tuple(Place("made_up_framework", name) for name in ("renamed", "forward_step", "backward_step"))
    assert seams._there(Seam(Stage.FORWARD, places), "r") == [places[1]]
    assert seams._there(Seam(Stage.FORWARD, places, every=True), "r") == list(places[1:])
