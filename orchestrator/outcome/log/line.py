"""One line as a program wrote it, without what launchers, terminals and collectors wrapped around it."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LINE = 16_384
"""Characters of a line that are looked at. Longer lines are progress bars, dumps or binary."""

_ANSI = re.compile(rb"\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>78]|\([0-9A-B])")

_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)"
_DATE = rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]{_CLOCK}"
_STAMPS = (
    re.compile(rf"^[\[(<]?{_DATE}(?:Z|[+-]\d\d:?\d\d)?[\])>]?[ :|,-]*(?:(?:stdout|stderr) [FP] )?"),
    re.compile(rf"^\[?(?P<level>[IWEFC])(?P<month>\d\d?)(?P<day>\d\d) {_CLOCK} +"),
    re.compile(rf"^\[?{_CLOCK}\]?[ :|-]+"),
)
_PREFIXES = (
    re.compile(r"^(?:> ?)+"),
    re.compile(r"^\[rank(?P<rank>\d+)\]: ?"),
    re.compile(r"^\[(?:default|trainer|worker|local_?rank)(?P<local>\d+)\]: ?"),
    re.compile(r"^ *(?P<rank>\d{1,5}): "),
    re.compile(r"^\[\d+,(?P<rank>\d+)\]<std(?:err|out)>: ?"),
    re.compile(r"^\((?P<actor>[A-Za-z_][\w.:-]*(?: rank[=:](?P<rank>\d+))?(?:,? ?pid=\d+)?(?:, ip=[\w.:]+)?)\) "),
    re.compile(r"^(?P<actor>[a-z][\w.-]*-\d+) +\| "),
    re.compile(r"^\[(?:R|r)ank ?(?P<rank>\d+)\] "),
)
_NCCL = re.compile(r"^(?P<actor>[\w.-]+:\d+):\d+ \[(?P<local>\d+)\] ")
_RANK_INSIDE = re.compile(
    r"\b[Rr]ank[ :=#]? ?(?P<rank>\d+)\b|^ *rank +: (?P<elastic>\d+) \(local_rank|: error: \S+: tasks? (?P<task>\d+)"
)
_BARE_NUMBER = re.compile(r"^ *(\d{1,5}): ?$")

_WARNING = re.compile(
    r"^(?:\[W\d{3,4} |W\d{3,4} )|^.{0,80}?(?:\bWARN(?:ING)?\b(?<!NCCL WARN)|\b\w*Warning:|\[W\]|\[NeMo W )"
)
_INFORMATION = re.compile(r"^(?:\[I\d{3,4} |I\d{3,4} )|^.{0,60}?(?:\bINFO\b(?<!NCCL INFO)|\bDEBUG\b|\[NeMo I )")
_ECHOED_SETTING = re.compile(r"^\s*(?:[\w.-]+ \.{3,} |\+{1,3} |export |#|[\w.-]+: (?:true|false|null|\d+)$|--[\w-]+)")


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
    warning: bool
    information: bool

    @property
    def indented(self) -> bool:
        return self.text.startswith((" ", "\t"))


def without_colours(block: bytes) -> bytes:
    """The bytes without terminal escapes. Line breaks stay where they are."""
    return _ANSI.sub(b"", block) if b"\x1b" in block else block


def peel(raw: str) -> LogLine:
    """Take prefixes and time stamps off a line without its line break, in whatever order they come."""
    text = raw[:MAX_LINE].rstrip()
    rank = local = None
    stream: list[str] = []
    moment: Moment | None = None
    warning = information = False
    for _ in range(8):
        stamp = next((match for pattern in _STAMPS if (match := pattern.match(text)) is not None), None)
        if stamp is not None:
            moment = moment or _moment(stamp)
            warning = warning or stamp.groupdict().get("level") == "W"
            information = information or stamp.groupdict().get("level") == "I"
            text = text[stamp.end() :]
            continue
        prefix = next((match for pattern in _PREFIXES if (match := pattern.match(text)) is not None), None)
        if prefix is None:
            bare = _BARE_NUMBER.match(text)
            if bare is None:
                break
            rank, text = int(bare.group(1)) if rank is None else rank, ""
            break
        found = prefix.groupdict()
        if found.get("rank") is not None:
            rank = int(found["rank"])
        elif found.get("local") is not None and local is None:
            local = int(found["local"])
        if found.get("actor") is not None:
            stream.append(found["actor"])
        text = text[prefix.end() :]
    if rank is not None:
        stream = [f"rank {rank}"]
    elif local is not None:
        stream.append(f"local {local}")
    nccl = _NCCL.match(text)
    if nccl is not None and local is None:
        local = int(nccl.group("local"))
        if rank is None:
            stream.append(nccl.group("actor"))
    return LogLine(
        text=text,
        stream="/".join(stream),
        rank=rank,
        local=local,
        moment=moment,
        warning=warning or _WARNING.match(text) is not None,
        information=information or _INFORMATION.match(text) is not None,
    )


def is_echoed_setting(text: str) -> bool:
    """Whether a line repeats a setting, a command or a comment: names in it are not events."""
    return _ECHOED_SETTING.match(text) is not None


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


def _moment(stamp: re.Match[str]) -> Moment | None:
    found = stamp.groupdict()
    seconds = int(found["hour"]) * 3600 + int(found["minute"]) * 60 + float(found["second"].replace(",", "."))
    if found.get("month") is None:
        return Moment(False, seconds)
    month = int(found["month"])
    if not 1 <= month <= 12:
        return None
    return Moment(True, (_DAYS[month - 1] + int(found["day"])) * 86400 + seconds)
