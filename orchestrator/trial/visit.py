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
        self._depth = self._recorder.depth
        self._recorder.enter(self._stage)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._recorder.handled()
        else:
            self._recorder.passing(error)
        self._recorder.return_to(self._depth)
