"""One line as a program wrote it, without what launchers, terminals and collectors wrapped around it."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LINE = 16_384
"""Characters of a line that are looked at. Longer lines are progress bars, dumps or binary."""

_ANSI = re.compile(rb"\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>78]|\([0-9A-B])")

_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)"
_DATE = rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]{_CLOCK}"
_BAR = re.compile(r"^.*[\d?](?:it/s|s/it)(?:, [^\]]*)?\](?=\S)")
"""A progress bar that something was printed behind without a line break."""
_DIGITS = "0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HOST = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[A-Za-z][\w-]*\d[\w-]*(?:\.[\w.-]+)?)"
"""An address, or a name of a node with a number in it, as pdsh puts it before every line."""
_WRAPPINGS = (
    ("[(<" + _DIGITS, rf"[\[(<]?{_DATE}(?:Z|[+-]\d\d:?\d\d)?[\])>]?[ \t:|,-]*(?:(?:stdout|stderr) [FP] )?"),
    ("[IWEFC", rf"\[?(?P<level>[IWEFC])(?P<month>\d\d?)(?P<day>\d\d) {_CLOCK} +"),
    (_DIGITS, r"\d{2,9} (?:\S*/)?\w+\.py:\d+\] ?"),
    ("DIWEC", rf"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d\d-\d\d )?{_CLOCK} \[[\w./-]+:\d+\] ?"),
    ("DIWEC", r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:"),
    ("[" + _DIGITS, rf"\[?{_CLOCK}\]?[ :|-]+"),
    ("[", r"\[(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\] (?:\[[^\]]{1,80}\] ?)*"),
    (">", r"(?:> ?)+"),
    (" ", r" +(?=\[(?:rank|default)\d+\]: )"),
    ("[", r"\[rank(?P<rank>\d+)\]: ?"),
    ("[", r"\[(?:default|trainer|worker|local_?rank)(?P<local>\d+)\]: ?"),
    (" " + _DIGITS, r" *(?P<rank>\d{1,5}):(?: |$)"),
    ("[", r"\[\d+,(?P<rank>\d+)\]<std(?:err|out)>: ?"),
    (
        "(",
        r"\((?P<actor>[A-Za-z_][\w.:-]*(?:(?:,? rank[=:]|\[rank=)(?P<rank>\d+)\]?)?(?:,? ?pid=\d+)?"
        r"(?:, ip=[\w.:]+)?)\) ",
    ),
    (_LETTERS, r"(?P<actor>[a-z][\w.-]*-\d+) +\| "),
    (_LETTERS, r"(?P<actor>[A-Za-z][\w.-]*/\d+) (?=\[)"),
    (_LETTERS, r"(?P<actor>[A-Za-z][\w.-]*-\d+) >> ?"),
    (_LETTERS + _DIGITS, rf"(?P<actor>{_HOST}): (?=  |\[|Traceback|[\w.]*(?:Error|Exception)\b)"),
    ("E", r"E {3,}(?=\S)"),
    ("[", r"(?:\[[^\]]{1,80}\] )+(?=  File \"|Traceback \(most|[\w.]*(?:Error|Exception): )"),
    ("[", r"\[(?:R|r)ank ?(?P<rank>\d+)\] "),
)
"""Time stamps, levels and prefixes of launchers and collectors, each with the characters that it may begin with."""
_BY_FIRST = {
    first: tuple(re.compile(pattern) for begins, pattern in _WRAPPINGS if first in begins)
    for first in {character for begins, _ in _WRAPPINGS for character in begins}
}
_MOST_WRAPPINGS = 8
_NCCL = re.compile(r"^(?P<actor>[\w.-]+:\d+):\d+ \[(?P<local>\d+)\] ")
_RANK_INSIDE = re.compile(
    r"\b[Rr]ank[ :=#]? ?(?P<rank>\d+)\b|^ *rank +: (?P<elastic>\d+) \(local_rank|: error: \S+: tasks? (?P<task>\d+)"
)

_WARNING = re.compile(
    r"^(?:\[W\d{0,4} |W\d{3,4} )|^.{0,80}?(?:\bWARN(?:ING)?\b(?<!NCCL WARN)|\b\w*Warning:|\[W\]|\[NeMo W )"
)
_INFORMATION = re.compile(r"^(?:\[I\d{0,4} |I\d{3,4} )|^.{0,60}?(?:\bINFO\b(?<!NCCL INFO)|\bDEBUG\b|\[NeMo I )")
_ECHOED_SETTING = re.compile(
    r"^\s*(?:[\w.-]+ \.{3,} |\+{1,3} |export |#|[a-z][\w.-]*: (?:true|false|null|\d+)$|--[\w-]+)"
)
_CODE = re.compile(
    r"^\s*(?:raise [\w.]+\(|except\b.*:|(?:el)?if .*:$|return \w|def \w+\(|class \w+.*:$|import \w|from [\w.]+ import )"
)


@dataclass(frozen=True)
class Moment:
    """A time as printed. Only moments of the same kind are compared; years and time zones are not."""

    dated: bool
    seconds: float
    """Since the year began where dated, since midnight where not."""


@dataclass(frozen=True)
class LogLine:
    """A line, peeled. `stream` tells processes apart: lines with the same one were written by the same process."""

    text: str
    stream: str
    rank: int | None
    local: int | None
    """Number of the process on its node, where that is all the prefix says."""
    moment: Moment | None
    level: str
    """As a prefix gave it; empty where none did."""

    @property
    def warning(self) -> bool:
        """Whether it only warns."""
        return self.level.startswith("W") or _WARNING.match(self.text) is not None

    @property
    def information(self) -> bool:
        """Whether it only informs."""
        return self.level in ("I", "INFO", "DEBUG") or _INFORMATION.match(self.text) is not None

    @property
    def indented(self) -> bool:
        return self.text.startswith((" ", "\t"))


def parts_of(raw: str) -> list[str]:
    """A line, and before it the progress bar that it was printed behind, where that has something to say."""
    bar = _BAR.match(raw) if "it" in raw and "=nan" in raw else None
    return [raw] if bar is None else [bar.group(), raw[bar.end() :]]


def without_colours(block: bytes) -> bytes:
    """The bytes without terminal escapes. Line breaks stay where they are."""
    return _ANSI.sub(b"", block) if b"\x1b" in block else block


def peel(raw: str) -> LogLine:
    """Take prefixes and time stamps off a line without its line break, in whatever order they come."""
    text = raw[:MAX_LINE].rstrip()
    peeling = _Peeling(_BAR.sub("", text, count=1) if "it" in text else text)
    for _ in range(_MOST_WRAPPINGS):
        if not peeling.take_one():
            break
    return peeling.result()


class _Peeling:
    """A line while its wrappings are taken off."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.rank: int | None = None
        self.local: int | None = None
        self.actors: list[str] = []
        self.moment: Moment | None = None
        self.level = ""

    def take_one(self) -> bool:
        """Take the outermost wrapping off, if there is one."""
        for pattern in _BY_FIRST.get(self.text[:1], ()):
            match = pattern.match(self.text)
            if match is not None:
                self._learn(match)
                self.text = self.text[match.end() :]
                return True
        return False

    def _learn(self, match: re.Match[str]) -> None:
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        self.level = self.level or found.get("level", "")
        if "hour" in found and self.moment is None:
            self.moment = _moment(found)
        if "rank" in found:
            self.rank = int(found["rank"])
        elif "local" in found and self.local is None:
            self.local = int(found["local"])
        if "actor" in found:
            self.actors.append(found["actor"])

    def result(self) -> LogLine:
        stream = [f"rank {self.rank}"] if self.rank is not None else self.actors
        if self.rank is None and self.local is not None:
            stream.append(f"local {self.local}")
        nccl = _NCCL.match(self.text)
        if nccl is not None and self.local is None:
            self.local = int(nccl["local"])
            if self.rank is None:
                stream.append(nccl["actor"])
        return LogLine(
            text=self.text,
            stream="/".join(stream),
            rank=self.rank,
            local=self.local,
            moment=self.moment,
            level=self.level,
        )


def is_echoed_setting(text: str) -> bool:
    """Whether a line repeats a setting, a command, a comment or source code: names in it are not events."""
    return _ECHOED_SETTING.match(text) is not None or _CODE.match(text) is not None


def rank_in(text: str) -> int | None:
    """The rank that a line speaks of."""
    match = _RANK_INSIDE.search(text)
    if match is None:
        return None
    return int(next(group for group in match.groups() if group is not None))


def rank_of_file(name: str) -> int | None:
    """The rank whose log a file is, by the names that launchers give: `rank-00003.log`, `…/3/stderr.log`."""
    match = re.search(r"rank[-_.]?0*(\d+)(?!.*rank[-_.]?\d)", name)
    if match is None:
        match = re.search(r"(?:^|/)(\d+)/std(?:err|out)(?:\.log)?(?:\.\w+)?$", name)
    return int(match.group(1)) if match else None


_DAYS = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)


def _moment(found: dict[str, str]) -> Moment | None:
    seconds = int(found["hour"]) * 3600 + int(found["minute"]) * 60 + float(found["second"].replace(",", "."))
    if "month" not in found:
        return Moment(False, seconds)
    month = int(found["month"])
    if not 1 <= month <= 12:
        return None
    return Moment(True, (_DAYS[month - 1] + int(found["day"])) * 86400 + seconds)
