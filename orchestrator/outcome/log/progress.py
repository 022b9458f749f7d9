"""How far training had come at a place in a log, and what it had last said that it was doing."""

from __future__ import annotations

import re

from orchestrator.vocabulary import Stage

WINDOW = 64 * 2**10
"""Bytes before a place that are searched."""
END_WINDOW = 8 * 2**10
"""The same at the end of a block in which nothing happened."""

_PROGRESS = re.compile(
    rb"\biteration:? +(\d+) ?/ *\d+|\bafter (\d+) iterations\b|\bglobal_step\S*[:=] ?'?(\d+)|"
    rb"\biteration[:=]? +(\d+)(?= *\|)|^(?!.*\b[Vv]al).*\| *(\d+)/\d+ \[\d+:|"
    rb"\bsteps?[:=] ?(\d+)(?: +loss|, skipped=| - )|\btrain, step (\d+),|^=+ Step (\d+)/\d+ =|"
    rb"\bEpoch \[\d+\]\[(\d+)/\d+\]",
    re.MULTILINE,
)
_MARKS: tuple[tuple[str, Stage | None, str], ...] = (
    (
        "mark.saving",
        Stage.CHECKPOINT_SAVE,
        r"(?i:\bsaving (?:the )?(?:checkpoint|model|optimizer|state))|Saving model checkpoint",
    ),
    ("mark.saved", None, r"(?i:successfully saved|checkpoint saved|saved checkpoint)"),
    ("mark.loaded-shards", None, r"Loading checkpoint shards: 100%\|"),
    ("mark.validated", None, r"\bVal(?:id(?:ation)?)?\b[ :(][^\n\r]{0,60}\b100%\|"),
    (
        "mark.loading",
        Stage.CHECKPOINT_LOAD,
        r"(?i:\b(?:loading|restoring) (?:a |the |all )?"
        r"(?:(?:distributed|release|base|model|pretrained|optimizer|hf) ){0,2}(?:checkpoint|weights|states?)\b)",
    ),
    ("mark.loaded", None, r"(?i:successfully loaded|checkpoint loaded|loaded checkpoint|restored all states)"),
    (
        "mark.evaluating",
        Stage.EVALUATE,
        r"Evaluat(?:ing (?:iter|on)\b|ion +\[ *\d)|\bVal(?:id(?:ation)?)?\b[ :(][^\n]{0,60}%\||"
        r"\((?:val|valid|validation|eval)\): +\d+%|Validat(?:ing|ion DataLoader)\b|"
        r"(?i:starting validation|running (?:evaluation|validation)|\*+ running (?:evaluation|prediction))",
    ),
    ("mark.evaluated", None, r"validation loss at"),
    ("mark.log-probabilities", Stage.FORWARD, r"(?i:compute (?:ref(?:erence)? )?log[ _-]?probs?\b)"),
    ("mark.engine-call", Stage.BACKWARD, r"_execution_engine\.run_backward\("),
    ("mark.call-chain", Stage.FORWARD, r"-> \w+\.forward\b"),
    ("mark.chain-backward", Stage.BACKWARD, r"-> (?:\w+\.)*(?:run_backward|custom_backward|backward_step|backward)\b"),
    (
        "mark.chain-step",
        Stage.OPTIMIZER_STEP,
        r"-> (?:\w+\.)*(?:optimizer_step|step_with_ready_grads|optimizer\.step)\b",
    ),
    ("mark.chain-sync", Stage.GRAD_SYNC, r"-> (?:\w+\.)*(?:finalize_model_grads|start_grad_sync|finish_grad_sync)\b"),
    ("mark.chain-save", Stage.CHECKPOINT_SAVE, r"-> (?:\w+\.)*save_checkpoint\w*\b"),
    ("mark.chain-load", Stage.CHECKPOINT_LOAD, r"-> (?:\w+\.)*load_checkpoint\w*\b"),
    (
        "mark.over",
        Stage.TEARDOWN,
        r"(?i:after training is done|training (?:is )?(?:complete|finished)\b|finished training)",
    ),
    ("mark.model", Stage.MODEL_BUILD, r"building \w+ model \.\.\."),
    ("mark.built", None, r"number of parameters on"),
    ("mark.data", Stage.DATA_BUILD, r"building train, validation, and test datasets"),
    ("mark.data-built", None, r"finished creating \w+ datasets|done with setup"),
    ("mark.distributed", Stage.DISTRIBUTED_INIT, r"initializing torch distributed|NCCL INFO init\.cc:\d+ -> [1-9]"),
    ("mark.distributed-done", None, r"initialized (?:tensor|pipeline) model parallel"),
    ("mark.step", None, r"\biteration:? +\d+ ?/ *\d+"),
)
_ANY_MARK = re.compile("|".join(f"(?P<m{index}>{pattern})" for index, (_, _, pattern) in enumerate(_MARKS)).encode())
_OVER = re.compile(
    rb"(?i:after training is done|training (?:is )?(?:complete|finished)\b|finished training)|"
    rb"`Trainer\.fit` stopped: `max_(?:steps|epochs)=|exiting program at iteration"
)


class Lookback:
    """Progress and marks before places of one block, asked for in rising order as far as possible."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0
        self._progress: int | None = None
        self._mark: tuple[str, Stage] | None = None

    def at(self, place: int, window: int = WINDOW) -> tuple[int | None, tuple[str, Stage] | None]:
        """The last completed iteration spoken of before a place, and the activity that was begun there and not ended.

        An activity is the id of its mark and its stage. None where nothing is said in the window before the place.
        """
        if place < self._place:
            return Lookback(self._data).at(place, window)
        start = max(self._place, _line_start(self._data, max(0, place - window)))
        progress = mark = None
        for progress in _PROGRESS.finditer(self._data, start, place):  # noqa: B007
            pass
        for mark in _ANY_MARK.finditer(self._data, start, place):  # noqa: B007
            pass
        self._place = place
        if progress is not None:
            self._progress = _number(progress)
        if mark is not None and mark.lastgroup is not None:
            name, stage, _ = _MARKS[int(mark.lastgroup[1:])]
            self._mark = None if stage is None else (name, stage)
        return self._progress, self._mark


def progress_between(data: bytes, place: int, end: int) -> int | None:
    """The highest iteration spoken of between two places, not further than a window from the first."""
    numbers = [_number(match) for match in _PROGRESS.finditer(data, place, min(end, place + WINDOW))]
    return max(numbers, default=None)


def last_progress(data: bytes) -> int | None:
    """The last completed iteration that the end of a block speaks of."""
    start = _line_start(data, max(0, len(data) - END_WINDOW))
    numbers = [_number(match) for match in _PROGRESS.finditer(data, start)]
    return numbers[-1] if numbers else None


def over_at(data: bytes) -> int | None:
    """Where the bytes say that training was over, if they do."""
    match = _OVER.search(data)
    return None if match is None else match.start()


def _number(match: re.Match[bytes]) -> int:
    return int(next(group for group in match.groups() if group is not None))


def _line_start(data: bytes, place: int) -> int:
    return data.rfind(b"\n", 0, place) + 1
