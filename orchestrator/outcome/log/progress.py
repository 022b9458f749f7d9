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
    rb"\biteration[:=]? +(\d+)\b(?= *[|:,])|^(?!.*\b[Vv]al).*\| *(\d+)/\d+ \[\d+:|\bstep[:=] *(\d+) +loss",
    re.MULTILINE,
)
_MARKS: tuple[tuple[str, Stage | None, str], ...] = (
    (
        "mark.saving",
        Stage.CHECKPOINT_SAVE,
        r"(?i:\bsaving (?:the )?(?:checkpoint|model|optimizer|state))|Saving model checkpoint",
    ),
    ("mark.saved", None, r"(?i:successfully saved|checkpoint saved|saved checkpoint)"),
    (
        "mark.loading",
        Stage.CHECKPOINT_LOAD,
        r"(?i:\bloading (?:distributed )?(?:checkpoint|weights)|Loading checkpoint shards)",
    ),
    ("mark.loaded", None, r"(?i:successfully loaded|checkpoint loaded)"),
    (
        "mark.evaluating",
        Stage.EVALUATE,
        r"Evaluat(?:ing (?:iter|on)\b|ion +\[\d)|\bVal(?:id(?:ation)?)?\b[ :(][^\n]{0,60}%\||"
        r"Validat(?:ing|ion DataLoader)\b|"
        r"(?i:starting validation|running (?:evaluation|validation)|\*+ running (?:evaluation|prediction))",
    ),
    ("mark.evaluated", None, r"validation loss at"),
    ("mark.log-probabilities", Stage.FORWARD, r"(?i:compute (?:ref(?:erence)? )?log[ _-]?probs?\b)"),
    ("mark.call-chain", Stage.FORWARD, r"-> \w+\.forward\b"),
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


def progress_before(data: bytes, place: int, window: int = WINDOW) -> int | None:
    """The last completed iteration that the bytes before a place speak of; None where they speak of none."""
    best = None
    for best in _PROGRESS.finditer(data, _line_start(data, max(0, place - window)), place):  # noqa: B007
        pass
    return None if best is None else _number(best)


def progress_after(data: bytes, place: int) -> int | None:
    """The highest iteration that the bytes after a place speak of."""
    numbers = [_number(match) for match in _PROGRESS.finditer(data, place, min(len(data), place + WINDOW))]
    return max(numbers, default=None)


def mark_before(data: bytes, place: int) -> tuple[str, Stage] | None:
    """The activity that the log last began and did not end before a place: an id and its stage."""
    last = None
    for last in _ANY_MARK.finditer(data, _line_start(data, max(0, place - WINDOW)), place):  # noqa: B007
        pass
    if last is None or last.lastgroup is None:
        return None
    name, stage, _ = _MARKS[int(last.lastgroup[1:])]
    return None if stage is None else (name, stage)


def over_at(data: bytes) -> int | None:
    """Where the bytes say that training was over, if they do."""
    match = _OVER.search(data)
    return None if match is None else match.start()


def _number(match: re.Match[bytes]) -> int:
    return int(next(group for group in match.groups() if group is not None))


def _line_start(data: bytes, place: int) -> int:
    return data.rfind(b"\n", 0, place) + 1
