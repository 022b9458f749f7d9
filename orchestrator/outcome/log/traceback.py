"""How tracebacks are printed: by Python, IPython and rich, folded into one line, or cut off."""

from __future__ import annotations

import re

from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.outcome.frames import Located, stage_of
from orchestrator.outcome.log.line import peel
from orchestrator.outcome.raised import Verdict, judge_exception, located
from orchestrator.outcome.rule import Weight
from orchestrator.vocabulary import Cause, Stage

_FILE = re.compile(r'^\s*(?:[|+] +)?File "(?P<file>[^"]*)", line (?P<line>\d+)(?:,? in (?P<function>.+?))?\s*$')
_NOTEBOOK = re.compile(r"^\s*File (?P<file>/\S+?):(?P<line>\d+)(?:, in (?P<function>[\w.<>]+).*)?$")
_CELL = re.compile(r"^(?P<file>[/<]\S+) in (?P<function>[\w<>]+).*(?P<line>)$")
ARROW = re.compile(r"^-+> *\d+ (?P<code>.*)$")
"""A frame, and the line of source it is at, as IPython prints them."""
BOXED = re.compile(r"^│ (?P<file>[\w.-]*/\S+?\.py):(?P<line>\d+)(?: +in(?: +(?P<function>[\w<>]+))?)?\s*│?$")
BOXED_FILE = re.compile(r"^│ (?P<file>/\S+?\.py)\s*│?$")
BOXED_HALF = re.compile(r"^│ /[\w./-]{30,}\s*│?$")
"""The first half of a path that was too long for its line."""
BOXED_REST = re.compile(r"^│ :(?P<line>\d+)(?: +in (?P<function>[\w<>]+))?\s*│?$")
BOXED_NAME = re.compile(r"^│ (?:in )?(?P<function>[\w<>]+)\s*│?$")
BOXED_CODE = re.compile(r"^│ +❱ +\d+ [│ ]*(?P<code>.*?)\s*│?$")
EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*(?:\.|::))*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|OutOfResources|Iteration)\w*"
    r"(?:\([\w.]+\))?)(?::\s*(?P<message>.*)|\s*)$"
)
AFTER_FRAMES = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:\([\w.]+\))?)(?::\s(?P<message>.*)|:?\s*)$")
_BREAK = "\\n"
"""A line break that was written out."""
_QUOTED = re.compile(r"^['\"], ?['\"]")
_NEXT_FRAME = re.compile(r'(?:^|\s+)(?=File "[^"]+", line \d+, in )')
_FOLDED_FRAME = re.compile(r'(?P<frame>File "[^"]+", line \d+, in \S+)\s*(?P<rest>.*)$')
_FOLDED_ERROR = re.compile(r"\s+(?=(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): )")
_CLOSURE = re.compile(r"\bclosure\b")
_LAUNCHER = re.compile(
    r"bin/(?:torchrun|accelerate|deepspeed)$|torch/distributed/(?:run|launch)\.py$|"
    r"torch/distributed/(?:launcher|elastic)/|accelerate/commands/|deepspeed/launcher/|/runpy\.py$"
)
"""Whose traceback only says that a process ended."""
HEADER = "Traceback (most recent call last)"
NAMED_HEADER = re.compile(r"^(?P<type>[A-Z]\w+) {2,}Traceback \(most recent call last\)")
"""How IPython begins a traceback: with the type of what ends it."""
REVERSED = re.compile(r"(?:Current thread|Thread) 0x\w+.*most recent call first|^Stack \(most recent call first\)")
IGNORED = re.compile(r"^\s*Exception ignored (?:in|while)")


def frame_in(text: str) -> re.Match[str] | None:
    """The file, line and function of a line that is a frame."""
    if "File " in text:
        return _FILE.match(text) or _NOTEBOOK.match(text)
    return _CELL.match(text) if " in " in text else None


def begins_a_box(text: str) -> bool:
    """Whether a line is a frame as rich draws it."""
    return text.startswith("│ ") and any(pattern.match(text) is not None for pattern in (BOXED, BOXED_FILE, BOXED_HALF))


def unfolded(raw: str) -> list[str]:
    """The lines in a line: several where a traceback was printed as a string, a list of strings or JSON, each of them
    with the line's prefix."""
    if _BREAK not in raw or "File " not in raw:
        return _one_a_line(raw) if raw.count('File "') > 1 else [raw]
    text = peel(raw).text
    prefix = raw[: raw.find(text)] if text in raw else ""
    first, *rest = text.replace('\\"', '"').split(_BREAK)
    return [prefix + first, *(prefix + _QUOTED.sub("", part) for part in rest)]


def _one_a_line(raw: str) -> list[str]:
    """The lines of a traceback whose line breaks became blanks."""
    text = peel(raw).text
    prefix = raw[: raw.find(text)] if text in raw else ""
    first, *rest = _NEXT_FRAME.split(text)
    lines = [first] if first else []
    for part in rest:
        frame = _FOLDED_FRAME.match(part)
        if frame is None:
            return [raw]
        code, *error = _FOLDED_ERROR.split(frame["rest"], maxsplit=1)
        lines += [f"  {frame['frame']}", *([f"    {code}"] if code else []), *error]
    return [prefix + line for line in lines]


def cut_short(frames: list[SourceFrame], kind: str = "") -> Verdict:
    """A traceback without its last line still says where, and its last line of source or its headline may say what."""
    if kind:
        return judge_exception(kind, "", frames)
    code = frames[-1].code
    where = stage_of(frames)
    if where.frame is not None and _CLOSURE.search(where.frame.code) and "lightning" in where.frame.file:
        where = Located()  # the step runs forward and backward, and which of them is cut off
    line = f'File "{frames[-1].file}", in {frames[-1].function}: {code}'
    if all(_LAUNCHER.search(frame.file) for frame in frames):
        return Verdict(Cause.CASCADE, Weight.ECHO, Stage.UNKNOWN, ("log.launcher-traceback",), line)
    if re.match(r"assert\b.*\bis_?(?:nan|inf|finite)\b", code):
        verdict = Verdict(Cause.NON_FINITE, Weight.ROOT, where.stage, ("log.asserted-finite",), line)
        return located(verdict, where)
    if re.match(r"(?:assert|raise (?:Value|Assertion|NotImplemented)Error)\b", code):
        return judge_exception("AssertionError", code, frames)
    importing = any(re.match(r"(?:from [\w.]+ )?import ", frame.code) for frame in frames[-2:])
    if frames[-1].function == "<module>" and importing:
        verdict = Verdict(Cause.IMPORT_ERROR, Weight.VAGUE, Stage.STARTUP, ("log.traceback-in-import",), line)
    else:
        verdict = Verdict(Cause.UNKNOWN, Weight.VAGUE, where.stage, ("log.traceback-cut",), line)
    return located(verdict, where)
