"""What a trainer prints: kept in the rank's log, and its last errors in memory."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import IO

from orchestrator.records.assemble import TAIL_BYTES
from orchestrator.records.redact import redact_text

_LONGEST_LINE = 65_536
"""A line longer than this is written in pieces: progress bars end theirs with the job."""


class Output:
    """Both streams of a trainer, line by line and without secrets; never a reason for the trainer to wait or fail."""

    def __init__(self, log: Path) -> None:
        """Open the log; where that cannot be, only the tail is kept, and `notes` say why."""
        self.notes: list[str] = []
        self.stderr_seen = 0
        """Bytes of stderr so far."""
        self._tail = b""
        self._pending: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self._log: IO[bytes] | None = None
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            self._log = os.fdopen(descriptor, "ab", buffering=0)
        except OSError as error:
            self.notes.append(f"no log: {log}: {error.strerror}")

    def feed(self, stream: str, data: bytes) -> None:
        """Take what came from `stdout` or `stderr`; a line that has not ended yet waits for its end."""
        if stream == "stderr":
            self.stderr_seen += len(data)
        pending = self._pending[stream] + data
        cut = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        if len(pending) - cut > _LONGEST_LINE:
            cut = len(pending)
        self._pending[stream] = pending[cut:]
        if cut:
            self._write(stream, pending[:cut])

    def finish(self) -> None:
        """Write the lines that never ended."""
        for stream, pending in self._pending.items():
            if pending:
                self._pending[stream] = b""
                self._write(stream, pending)

    @property
    def tail(self) -> str:
        """The last of stderr, at most `TAIL_BYTES` of it."""
        return self._tail.decode("utf-8", "replace")

    def printed_since(self, seen: int) -> bytes:
        """What stderr brought since `stderr_seen` was `seen`, as far as the tail reaches."""
        new = self.stderr_seen - seen
        return (self._tail + self._pending["stderr"])[-new:] if new > 0 else b""

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _write(self, stream: str, lines: bytes) -> None:
        text = redact_text(lines.decode("utf-8", "surrogateescape"))
        clean = text.encode("utf-8", "surrogateescape")
        if stream == "stderr":
            self._tail = (self._tail + clean)[-TAIL_BYTES:]
        if self._log is None:
            return
        try:
            self._log.write(clean)
        except OSError as error:
            # Not worth a trial: its record has the tail, and the disk may have room again later.
            if not self.notes:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                self.notes.append(f"the log is not complete: {'no room' if full else error.strerror}")


def drain(descriptor: int) -> bytes | None:
    """What can be read at once from a non-blocking descriptor; None at its end."""
    with contextlib.suppress(BlockingIOError):
        return os.read(descriptor, 65_536) or None
    return b""
