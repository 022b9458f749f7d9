"""What was found in one log."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.outcome.log.line import Moment
from orchestrator.outcome.raised import Verdict
from orchestrator.outcome.rule import Weight
from orchestrator.vocabulary import Cause, Stage

MAX_FINDINGS = 600
MAX_ALIKE = 3
"""Findings of one process that say the same."""
MAX_SAMPLES = 4096


@dataclass
class LogFinding:
    """One thing that a log says went wrong."""

    verdict: Verdict
    file: str
    line: int
    offset: int
    text: str
    stream: str
    rank: int | None
    local: int | None
    moment: Moment | None
    framed: bool
    """A traceback says where."""
    before: int | None = None
    """The last completed iteration that the log spoke of before."""
    mark: tuple[str, Stage] | None = None

    def move(self, lines: int) -> None:
        """Say that so many lines come before what it was read from."""
        self.line += lines
        frame = self.verdict.frame
        if frame is not None and frame.line is not None:
            self.verdict = replace(self.verdict, frame=replace(frame, line=frame.line + lines))


@dataclass
class Account:
    """What one log says, in bounded memory whatever its size."""

    file: str
    findings: list[LogFinding] = field(default_factory=list)
    progress: list[tuple[int, int]] = field(default_factory=list)
    """Offsets and the last iteration spoken of at them, in order."""
    over: int | None = None
    """Offset at which the log first says that training was over."""
    first_failure: int | None = None
    """The rank that torchrun says failed first."""
    remarks: int = 0
    """Lines that name a failure and say that it was dealt with."""
    document: bool = False
    """It reads like a document or source code: words about failures in it are believed only below a traceback."""
    binary: bool = False
    """It is no text."""
    cut: bool = False
    """Its compressed data ended too early, and what could be read was read."""
    hosts: set[str] = field(default_factory=set)
    bytes: int = 0
    lines: int = 0
    alike: dict[tuple[str, Cause, Weight], int] = field(default_factory=dict)
    """How many findings say the same, by process, cause and weight."""
    last: dict[Cause, tuple[int, int]] = field(default_factory=dict)
    """Where numbers that spoil a run were last seen, by what they mean: offset and iteration."""
    left_out: int = 0
    """Findings beyond the limit, all of which repeat others."""

    def keep(self, finding: LogFinding) -> bool:
        """Add a finding unless its process has said the same often enough."""
        verdict = finding.verdict
        mine = (finding.stream, verdict.cause, verdict.weight)
        alike = self.alike.get(mine, 0)
        if alike >= MAX_ALIKE:
            self.left_out += 1
            return False
        if len(self.findings) >= MAX_FINDINGS:
            weakest = max(self.findings, key=lambda other: (other.verdict.weight, other.offset))
            self.left_out += 1
            if weakest.verdict.weight <= verdict.weight:
                return False
            self.findings.remove(weakest)
            gone = (weakest.stream, weakest.verdict.cause, weakest.verdict.weight)
            self.alike[gone] = self.alike.get(gone, 1) - 1
        self.alike[mine] = alike + 1
        self.findings.append(finding)
        return True

    def sample(self, offset: int, iteration: int) -> None:
        """Remember how far training was; every second sample is dropped when there are too many."""
        self.progress.append((offset, iteration))
        if len(self.progress) > MAX_SAMPLES:
            self.progress = self.progress[::2]

    def extend(self, later: Account) -> None:
        """Add what the rest of the same log said."""
        self.findings += later.findings
        self.findings = self.findings[: 2 * MAX_FINDINGS]
        last = self.progress[-1][1] if self.progress else None
        for finding in later.findings:
            finding.move(self.lines)
            finding.before = last if finding.before is None else finding.before
        self.progress += later.progress
        self.over = later.over if self.over is None else self.over
        self.first_failure = later.first_failure if self.first_failure is None else self.first_failure
        self.remarks += later.remarks
        self.cut = self.cut or later.cut
        self.last |= later.last
        self.hosts |= later.hosts
        self.bytes += later.bytes
        self.lines += later.lines
        self.left_out += later.left_out
