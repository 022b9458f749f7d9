"""One visit to a stage."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from orchestrator.vocabulary import Stage

if TYPE_CHECKING:
    from orchestrator.trial.recorder import Recorder


class Visit:
    """Enters a stage and leaves it again, with whatever was entered inside and not left; notes what is raised."""

    __slots__ = ("_depth", "_recorder", "_stage")

    def __init__(self, recorder: Recorder, stage: Stage) -> None:
        self._recorder = recorder
        self._stage = stage
        self._depth = 0

    def __enter__(self) -> None:
        recorder = self._recorder
        self._depth = len(recorder.codes)
        recorder.enter(self._stage)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder = self._recorder
        if error is not None:
            recorder.passing(error)
        elif recorder.unwinding:
            recorder.handled()
        while len(recorder.codes) > self._depth:
            recorder.leave()
