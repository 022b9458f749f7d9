"""From blocks of bytes to the lines that matter."""

from __future__ import annotations

import re
from collections import deque

from orchestrator.outcome.log.account import Account, LogFinding
from orchestrator.outcome.log.document import is_binary, is_document
from orchestrator.outcome.log.line import MAX_LINE, rank_of_file, without_colours
from orchestrator.outcome.log.needles import CAPITALS, CAPITALS_BUT_FRAMES, NUMBERS, SMALL
from orchestrator.outcome.log.progress import Lookback, last_progress, over_at, progress_between
from orchestrator.outcome.log.source import Block
from orchestrator.outcome.log.story import Story
from orchestrator.outcome.rule import Weight

_BAR = re.compile(rb"[^\n\r]{0,400}[\d?](?:it/s|s/it)(?:, [^\]\n\r]*)?\](?=\S)")
"""A progress bar that the rest of its line was printed behind: it came before."""
_TAIL = 64 * 2**10
_REPEATED = 1000
_PER_BLOCK = 4
"""Progress lines that spoil a run of which so many are read in every block, and the last."""
_NEAR_THE_END = 8 * 2**20


class Scanner:
    """Reads one log, block after block, into an account of it."""

    def __init__(self, file: str, size: int | None = None) -> None:
        """`size` is that of the whole file in bytes, where it can be known."""
        self._size = size
        self.account = Account(file)
        self._story = Story(file, rank_of_file(file), self._found)
        self._data = b""
        self._tail = b""
        self._base = 0
        self._last: int | None = None
        """The last iteration spoken of in the blocks before."""
        self._new: list[LogFinding] = []
        self._lookback = Lookback(b"")

    def feed(self, block: Block) -> None:
        """Take in the next block."""
        self._tail = self._data[-_TAIL:]
        self._data = without_colours(block.data)
        self._base = block.offset
        self._lookback = Lookback(self._data)
        self._new = []
        if block.offset == 0:
            self.account.document = is_document(self._data)
            self.account.binary = is_binary(block.data)
        self.account.cut = self.account.cut or block.cut
        self._story.frames = frames = not self._has_heard_enough(block.offset)
        self._read(block.line, sorted(line_starts(self._data, frames)))
        account = self.account
        samples: list[tuple[int, int]] = []
        end = len(self._data)
        for finding in reversed(self._new):
            place = max(0, finding.offset - self._base)
            after = progress_between(self._data, _line_end(self._data, place), end)
            end = min(end, place)
            if after is not None:
                samples.append((finding.offset + 1, after))
        for offset, iteration in reversed(samples):
            account.sample(offset, iteration)
        last = last_progress(self._data)
        if last is not None:
            self._last = last
            account.sample(self._base + len(self._data), last)
        if self._new:
            self._look_for_the_end()
        account.bytes += len(block.data)
        account.lines += block.data.count(b"\n")

    def warm(self, block: Block) -> None:
        """Take in what comes before the part to be read, only to know what is open when that begins."""
        self.feed(block)
        self.account = Account(self.account.file)

    def end(self, whole: bool = True) -> Account:
        """The account of the log; `whole` where no other part of it follows."""
        if whole:
            self._look_for_the_end()
            self._story.end()
        self.account.first_failure = self._story.first_failure
        self.account.remarks = self._story.remarks
        self.account.left_out += self._story.repeats
        self.account.hosts = self._story.hosts
        return self.account

    def _has_heard_enough(self, offset: int) -> bool:
        """Whether tracebacks have repeated themselves so often that only those near the end can tell anything new."""
        return (
            self.account.left_out + self._story.repeats > _REPEATED
            and self._size is not None
            and self._size - offset > _NEAR_THE_END
        )

    def _look_for_the_end(self) -> None:
        """Whether the current block, or its tail of the one before, says that training was over."""
        if self.account.over is None:
            over = over_at(self._tail + self._data)
            self.account.over = None if over is None else self._base - len(self._tail) + over

    def _read(self, line: int, starts: list[int]) -> None:
        data, story = self._data, self._story
        counted = cursor = 0
        index = 0
        size = len(data)
        while True:
            while index < len(starts) and starts[index] < cursor:
                index += 1
            if story.attentive and cursor < size:
                start = cursor
            elif index < len(starts):
                start = starts[index]
            else:
                return
            end = _line_end(data, start)
            line += data.count(b"\n", counted, start)
            counted = start
            raw = data[start : min(end, start + MAX_LINE)].decode("utf-8", "replace")
            if raw and not raw.isspace():
                story.feed(raw, line, self._base + start)
            cursor = end + 1

    def _found(self, finding: LogFinding) -> bool:
        verdict = finding.verdict
        if verdict.weight is Weight.NUMBERS:
            end = _line_end(self._data, max(0, finding.offset - self._base))
            spoken = self._lookback.at(end)[0]
            self.account.last[verdict.cause] = finding.offset, (self._last or 0) if spoken is None else spoken
        if not self.account.keep(finding):
            return False
        self._new.append(finding)
        place = finding.offset - self._base
        if place >= 0:
            bar = _BAR.match(self._data, place)
            before, finding.mark = self._lookback.at(place if bar is None else bar.end())
            finding.before = before if before is not None else self._last
        return True


def line_starts(data: bytes, frames: bool = True) -> set[int]:
    """Where the lines to be looked at begin. Both line breaks and carriage returns begin a line."""
    starts: set[int] = set()
    returns = b"\r" in data
    end = -1
    for match in (CAPITALS if frames else CAPITALS_BUT_FRAMES).finditer(data):
        if match.start() >= end:
            starts.add(_line_start(data, match.start(), returns))
            end = _line_end(data, match.start())
    for word in SMALL:
        place = data.find(word)
        while place >= 0:
            starts.add(_line_start(data, place, returns))
            place = data.find(word, _line_end(data, place))
    for pattern in NUMBERS:
        end = 0
        for _ in range(_PER_BLOCK):
            number = pattern.search(data, end)
            if number is None:
                break
            starts.add(_line_start(data, number.start(), returns))
            end = _line_end(data, number.end())
        else:
            number = _last_match(pattern, data, end)
            if number is not None:
                starts.add(_line_start(data, number.start(), returns))
    return starts


def _last_match(pattern: re.Pattern[bytes], data: bytes, begin: int) -> re.Match[bytes] | None:
    """The last place behind `begin`, looked for from the end."""
    end = len(data)
    while end > begin:
        start = max(begin, data.rfind(b"\n", begin, max(begin, end - _TAIL)) + 1)
        found = deque(pattern.finditer(data, start, end), maxlen=1)
        if found:
            return found[0]
        end = start
    return None


def _line_start(data: bytes, place: int, returns: bool) -> int:
    start = data.rfind(b"\n", 0, place)
    if returns:
        start = max(start, data.rfind(b"\r", max(start, 0), place))
    return start + 1


def _line_end(data: bytes, place: int) -> int:
    end = data.find(b"\n", place)
    end = len(data) if end < 0 else end
    carriage = data.find(b"\r", place, end)
    return end if carriage < 0 else carriage
