"""One process's traceback while its lines come in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.outcome.frame_rules import SourceFrame
from orchestrator.outcome.frames import Located
from orchestrator.outcome.log.account import LogFinding
from orchestrator.outcome.log.line import LogLine
from orchestrator.outcome.log.traceback import BOXED, BOXED_CODE, BOXED_FILE, BOXED_NAME, BOXED_REST


@dataclass
class Stream:
    """One process's traceback so far."""

    frames: list[SourceFrame] = field(default_factory=list)
    first_frame: tuple[int, int, LogLine] | None = None
    headed: bool = False
    """The frames stand below a traceback's headline, so they belong to what follows them."""
    reversed: bool = False
    expects_code: bool = False
    indented: bool = False
    """Its last frame is, and so its source would be."""
    ignored: bool = False
    boxed: bool = False
    """Inside a traceback as rich draws it."""
    kind: str = ""
    """The exception that its headline names."""
    broken_path: str = ""
    """A path in it whose line number stands on the next line."""
    open: LogFinding | None = None
    """The last finding without frames of its own, which may follow it."""
    since_open: int = 0
    counted: LogFinding | None = None
    """A finding whose numbers stand on lines of their own behind it."""
    numbers: str = ""
    last_where: Located | None = None
    since_exception: int = 0
    elastic_rank: int | None = None

    def draw(self, log: LogLine, line: int, offset: int) -> bool:
        """Take in a line of a traceback that rich drew; False where it is none.

        Paths and names of functions may stand on lines of their own.
        """
        self.boxed = True
        frame = BOXED.match(log.text)
        path = BOXED_FILE.match(log.text)
        rest = BOXED_REST.match(log.text)
        if frame is not None or (rest is not None and self.broken_path):
            found = frame if frame is not None else rest
            assert found is not None
            if not self.frames:
                self.first_frame = (line, offset, log)
            file = frame["file"] if frame is not None else self.broken_path
            self.frames.append(SourceFrame(file, found["function"] or "", line=line))
        elif path is not None:
            self.broken_path = path["file"]
        elif not log.text.startswith("│"):
            self.boxed = False
        elif self.frames:
            name, code = BOXED_NAME.match(log.text), BOXED_CODE.match(log.text)
            last = self.frames[-1]
            if name is not None and not last.function:
                self.frames[-1] = replace(last, function=name["function"])
            elif code is not None:
                self.frames[-1] = replace(last, code=code["code"])
        return self.boxed
