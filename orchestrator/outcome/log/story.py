"""What happens in a log, line by line: tracebacks are put together per process, and wordings are recognised."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from orchestrator.outcome.catalogue import REMARK_RULES, RULES
from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.outcome.frames import Located, stage_of
from orchestrator.outcome.log.account import LogFinding
from orchestrator.outcome.log.line import LogLine, is_echoed_setting, parts_of, peel, rank_in
from orchestrator.outcome.log.needles import worth_a_look
from orchestrator.outcome.log.stream import Stream
from orchestrator.outcome.log.traceback import (
    AFTER_FRAMES,
    ARROW,
    EXCEPTION,
    HEADER,
    IGNORED,
    NAMED_HEADER,
    REVERSED,
    begins_a_box,
    cut_short,
    frame_in,
    unfolded,
)
from orchestrator.outcome.raised import Verdict, judge_exception, located, verdict_of, with_numbers_of
from orchestrator.outcome.rule import SHAPED, Weight, first_match, how_many_may_match, shape_of
from orchestrator.vocabulary import Cause, Stage

MAX_STREAMS = 4096
MAX_FRAMES = 400
_FRAME_LINES = 256
"""Lines after a frame, of all processes, within which its source and its exception are looked for."""
_OFTEN = 8
"""Lines of one shape with nothing new after which the next are passed over."""
_BOX_LINES = 24
_TABLE_LINES = 10
_MESSAGE_LINES = 14
"""Lines after an exception that may belong to its message."""
_TRAILING_LINES = 60
"""Lines after an exception within which its frames may follow it."""

_NUMBER_LINE = re.compile(
    r"^(?:Currently allocated|Requested|Device limit|Free \(according to CUDA\)|PyTorch limit).*: "
)
_NCCL_INFORMS_OF = frozenset({Cause.COMMUNICATION, Cause.NCCL_OOM, Cause.HANG})
"""Causes that NCCL also speaks of where it only informs."""
_BY_THEMSELVES = frozenset({Cause.HARDWARE, Cause.NODE_FAILURE, Cause.PREEMPTED})
"""Causes that are believed also where the line is only a warning."""


class Story:
    """Feed it the lines that matter, in order; it hands findings to `found`, which says whether it keeps them."""

    def __init__(self, file: str, rank: int | None, found: Callable[[LogFinding], bool]) -> None:
        self._file = file
        self._rank = rank
        self._found = found
        self._streams: dict[str, Stream] = {}
        self._attention = 0
        self._unfinished: set[str] = set()
        self._summary = 0
        self._old_news: dict[tuple[str, str], int] = {}
        """How often lines of a process and a shape that one rule alone knows had nothing new to say."""
        self._known: set[tuple[str, str]] = set()
        """Those of them that did say something, if nothing new."""
        self.repeats = 0
        """Lines passed over that say again what others said."""
        self.frames = True
        """Whether to put tracebacks together; without, what is raised is known by its words alone."""
        self.first_failure: int | None = None
        self.remarks = 0
        """Lines that name a failure and say that it was dealt with."""
        self.hosts: set[str] = set()

    @property
    def attentive(self) -> bool:
        """Whether the lines that follow belong to something that has begun, whatever words are in them."""
        return self._attention > 0

    def feed(self, raw: str, line: int, offset: int) -> None:
        """Take in one line without its line break."""
        for part in unfolded(raw):
            for piece in parts_of(part):
                self._feed(piece, line, offset)

    def _feed(self, raw: str, line: int, offset: int) -> None:
        if self._attention:
            self._attention -= 1
        elif not worth_a_look(raw):
            return
        log = peel(raw)
        stream = self._stream(log.stream)
        stream.since_exception += 1
        stream.since_open += 1
        self._read_tables(log, stream)
        frame = frame_in(log.text)
        arrow = ARROW.match(log.text) if stream.frames else None
        if arrow is not None:
            stream.frames[-1] = replace(stream.frames[-1], code=arrow["code"].strip())
            stream.expects_code = False
            return
        if stream.expects_code:
            stream.expects_code = False
            if frame is None and (log.indented or not (stream.indented or EXCEPTION.match(log.text))):
                last = stream.frames[-1]
                stream.frames[-1] = replace(last, code=log.text.strip())
                return
        if frame is not None:
            self._add_frame(stream, frame, line, offset, log)
        elif not self._begin(stream, log):
            if stream.boxed or begins_a_box(log.text):
                self._read_box(stream, log, line, offset)
            else:
                self._event(stream, log, line, offset)

    def _listen(self, lines: int) -> None:
        if self.frames:
            self._attention = max(self._attention, lines)

    def _finished(self, stream: str) -> None:
        """A traceback has its last line: if it was the last that was open, what follows is nobody's."""
        self._unfinished.discard(stream)
        if not self._unfinished:
            self._attention = self._summary

    def end(self) -> None:
        """The log is over: what was left open is closed."""
        for stream in self._streams.values():
            self._close(stream)

    def _begin(self, stream: Stream, log: LogLine) -> bool:
        """Whether a line is the headline of a traceback of some kind."""
        if "recent call" not in log.text and "ignored" not in log.text:
            return False
        if HEADER in log.text:
            ignored = stream.ignored and not stream.frames
            self._close(stream)
            stream.headed, stream.ignored = True, ignored
            named = NAMED_HEADER.match(log.text)
            stream.kind = "" if named is None else named["type"]
            if named is not None:
                self._listen(_FRAME_LINES)
            if log.text.startswith("╭"):
                stream.boxed = True
                self._listen(_BOX_LINES)
            return True
        is_reversed = REVERSED.search(log.text) is not None
        is_ignored = IGNORED.match(log.text) is not None
        if is_reversed or is_ignored:
            self._close(stream)
            stream.reversed, stream.ignored = is_reversed, is_ignored
        return is_reversed or is_ignored

    def _stream(self, name: str) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) >= MAX_STREAMS:
                name = ""
            stream = self._streams.setdefault(name, Stream())
            host, colon, _ = name.partition(":")
            if colon:
                self.hosts.add(host)
        return stream

    def _add_frame(self, stream: Stream, frame: re.Match[str], line: int, offset: int, log: LogLine) -> None:
        if not stream.frames:
            stream.first_frame = (line, offset, log)
        if len(stream.frames) >= MAX_FRAMES:
            del stream.frames[MAX_FRAMES // 2]
        stream.frames.append(SourceFrame(frame["file"], frame["function"] or "", line=line))
        stream.expects_code, stream.indented = True, log.indented
        self._unfinished.add(log.stream)
        self._listen(_FRAME_LINES)

    def _read_box(self, stream: Stream, log: LogLine, line: int, offset: int) -> None:
        self._listen(_BOX_LINES)
        if not stream.draw(log, line, offset) and not log.text.startswith("╰"):
            self._event(stream, log, line, offset)

    def _event(self, stream: Stream, log: LogLine, line: int, offset: int) -> None:
        text = log.text.strip()
        if text.startswith("Root Cause (first observed failure)"):
            self._summary = _TABLE_LINES
            self._listen(_TABLE_LINES)
            return
        told = (log.stream, shape_of(text)) if len(text) <= SHAPED else None
        if told is not None and not stream.frames and self._old_news.get(told, 0) >= _OFTEN:
            self.repeats += told in self._known
            return
        exception = EXCEPTION.match(text)
        rules = how_many_may_match(RULES, text)
        if not rules and exception is None and not stream.frames and not how_many_may_match(REMARK_RULES, text):
            return
        if is_echoed_setting(log.text):
            return
        if exception is None and stream.headed and stream.frames and not log.indented:
            exception = AFTER_FRAMES.match(text)
        if exception is not None and (stream.headed or (stream.frames and stream.open is None)):
            self._raised(stream, exception, log, line, offset)
            return
        verdict = self._wording(stream, text, log)
        kept = verdict is not None and self._record(stream, verdict, log, line, offset, framed=False)
        if told is not None and not kept and exception is None and rules == 1 and not _of_numbers(verdict):
            if len(self._old_news) >= MAX_STREAMS:
                self._old_news.clear()
                self._known.clear()
            self._old_news[told] = self._old_news.get(told, 0) + 1
            if verdict is not None:
                self._known.add(told)

    def _raised(self, stream: Stream, exception: re.Match[str], log: LogLine, line: int, offset: int) -> None:
        frames, ignored = stream.frames, stream.ignored
        stream.frames, stream.headed, stream.ignored, stream.first_frame = [], False, False, None
        self._finished(log.stream)
        stream.last_where = stage_of(frames)
        stream.since_exception = 0
        if ignored or self._is_remark(log.text):
            return
        verdict = judge_exception(exception["type"], exception["message"] or "", frames)
        self._record(stream, verdict, log, line, offset, framed=bool(frames))

    def _wording(self, stream: Stream, text: str, log: LogLine) -> Verdict | None:
        """What a line says by its words alone."""
        if self._is_remark(text):
            return None
        where = Located()
        if stream.last_where is not None and stream.since_exception <= _MESSAGE_LINES:
            where = stream.last_where
        rule = first_match(RULES, text)
        if rule is None:
            exception = EXCEPTION.match(text)
            if exception is None or log.warning or log.information:
                return None
            return judge_exception(exception["type"], exception["message"] or "")
        if (log.warning or log.information) and rule.weight < Weight.NUMBERS and rule.cause not in _BY_THEMSELVES:
            return None
        if (log.warning or log.information) and rule.weight is Weight.WAITED:
            return None
        if "NCCL INFO" in text and rule.cause not in _NCCL_INFORMS_OF:
            return None
        return located(verdict_of(rule, text, where.stage), where)

    def _is_remark(self, text: str) -> bool:
        remark = first_match(REMARK_RULES, text) is not None
        self.remarks += remark
        return remark

    def _record(self, stream: Stream, verdict: Verdict, log: LogLine, line: int, offset: int, framed: bool) -> bool:
        """Hand a finding on; whether it is kept."""
        rank = log.rank
        if rank is None or "srun: error" in log.text:
            rank = rank_in(log.text)
        if rank is None and "exitcode" in log.text:
            rank = stream.elastic_rank
        finding = LogFinding(
            verdict=verdict,
            file=self._file,
            line=line,
            offset=offset,
            text=log.text.strip(),
            stream=log.stream,
            rank=rank if rank is not None else self._rank,
            local=log.local,
            moment=log.moment,
            framed=framed or verdict.stage is not Stage.UNKNOWN,
        )
        if "would exceed allowed memory" in log.text:
            stream.counted, stream.numbers = finding, log.text
            self._listen(_TABLE_LINES)
        if not framed and verdict.weight <= Weight.WAITED:
            stream.open, stream.since_open = finding, 0
        elif framed:
            stream.open = None
        kept = self._found(finding)
        if kept and verdict.weight >= Weight.VAGUE:
            self._listen(_MESSAGE_LINES)  # what is behind it may stand in its next lines, in any words
        return kept

    def _close(self, stream: Stream) -> None:
        """End a run of frames that no exception ended: they belong to the finding before them, or are all there is."""
        frames, first, headed = stream.frames, stream.first_frame, stream.headed
        if stream.reversed:
            frames = frames[::-1]
        stream.frames, stream.headed, stream.reversed, stream.first_frame = [], False, False, None
        stream.expects_code = False
        finding, stream.open = stream.open, None
        ignored, stream.ignored = stream.ignored, False
        if not frames or first is None or ignored:
            return
        if finding is not None and not headed and stream.since_open <= _TRAILING_LINES + 2 * len(frames):
            _attach(finding, frames)
            return
        line, offset, log = first
        verdict = cut_short(frames, stream.kind)
        self._record(stream, verdict, log, line, offset, framed=True)

    def _read_tables(self, log: LogLine, stream: Stream) -> None:
        """torchrun's table of failures names the rank that it saw fail first; an allocator lists its numbers."""
        if self._summary:
            self._summary -= 1
            rank = re.match(r"^\s*(?:rank +: (\d+)|rank(\d+) \(local)", log.text)
            if rank is not None:
                stream.elastic_rank = int(rank.group(1) or rank.group(2))
                if self.first_failure is None:
                    self.first_failure = stream.elastic_rank
        if stream.counted is not None and _NUMBER_LINE.match(log.text):
            stream.numbers += f"\n{log.text}"
            stream.counted.verdict = with_numbers_of(stream.counted.verdict, stream.numbers)


def _of_numbers(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.weight is Weight.NUMBERS


def _attach(finding: LogFinding, frames: list[SourceFrame]) -> None:
    old = finding.verdict
    kind, _, message = old.line.partition(": ")
    new = judge_exception(kind, message, frames)
    if new.weight > old.weight:
        new = located(replace(old, stage=new.stage), stage_of(frames))
    if old.stage is Stage.UNKNOWN:
        finding.verdict = new
        finding.framed = True
