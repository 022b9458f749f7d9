"""What an exception says: type, message, frames, the exceptions behind it, and where the rank was."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.records.rank import ExceptionRecord, Frame
from orchestrator.vocabulary import Stage

_MAX_FRAMES = 200
"""Innermost frames that are kept: an endless recursion has a thousand, all alike."""
_MAX_MESSAGE = 32_768
_MAX_CHAIN = 16
_ATTRIBUTE = "__orchestrator_place__"


class Place(NamedTuple):
    """Where a rank was. `at` is unix seconds."""

    stage: Stage
    iteration: int
    microbatch: int
    at: float


def note_place(error: BaseException, stage: Stage, iteration: int, microbatch: int) -> bool:
    """Remember the innermost stage that an exception left; False where a stage further in was noted already.

    It is kept on the exception itself: nothing else may hold on to one, since its frames hold tensors.
    """
    if getattr(error, _ATTRIBUTE, None) is not None:
        return False
    cause = error.__cause__
    place = getattr(cause, _ATTRIBUTE, None) if cause is not None else None
    setattr(error, _ATTRIBUTE, place or Place(stage, iteration, microbatch, time.time()))
    return True


def exception_record(error: BaseException) -> ExceptionRecord:
    """The exception as it goes into a record, frames outermost first."""
    place: Place | None = getattr(error, _ATTRIBUTE, None)
    chain = list(_behind(error))[:_MAX_CHAIN]
    places: list[Place | None] = [getattr(other, _ATTRIBUTE, None) for other in chain]
    return ExceptionRecord(
        type=type_name(error),
        message=_message(error),
        frames=_frames(error),
        stage=place.stage if place else None,
        iteration=place.iteration if place else None,
        microbatch=place.microbatch if place else None,
        at=place.at if place else None,
        chain=[f"{type_name(other)}: {_message(other)}" for other in chain],
        chain_stages=[other.stage if other else None for other in places],
    )


def type_name(error: BaseException) -> str:
    """`torch.OutOfMemoryError`; the built-in ones without their module."""
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001  an exception's own __str__ may do anything
        text = f"<no message: {type_name(failure)} while it was asked for>"
    return "\n".join([text, *getattr(error, "__notes__", [])])[:_MAX_MESSAGE]


def _frames(error: BaseException) -> list[Frame]:
    walked = traceback.walk_tb(error.__traceback__)
    frames = [Frame(frame.f_code.co_filename, line or 0, frame.f_code.co_name) for frame, line in walked]
    return frames[-_MAX_FRAMES:]


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The exceptions behind one, nearest first; those that a group holds come before what caused the group."""
    seen = {id(error)}
    waiting = [error]
    while waiting:
        current = waiting.pop(0)
        nearer = list(getattr(current, "exceptions", ()))
        behind = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        for other in [*nearer, behind]:
            if isinstance(other, BaseException) and id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)
                yield other
