"""What a driver did, one JSON line each, beside its batch: what a screen follows without asking the driver."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.jsonfile import FormatError, decode, encode

JOURNAL_FILE = "journal.jsonl"

STARTED = "started"
ENDED = "ended"


@dataclass(frozen=True)
class Event:
    """A trial that started or ended. `at` is unix seconds."""

    at: float
    event: str
    trial: str
    attempt: str
    name: str
    role: str
    seconds: float | None = None
    label: str | None = None
    """The outcome as the driver saw it; None where it has none, and for one that was cut short."""
    cut_short: str | None = None
    retried: bool = False
    """Whether another attempt follows in this batch."""
    done: int | None = None
    """Trials of the batch that need no further attempt."""
    total: int | None = None


def write_event(batch_dir: Path, event: Event) -> None:
    """Add one line.

    Raises:
        OSError: it cannot be written.
    """
    with (batch_dir / JOURNAL_FILE).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(encode(event)) + "\n")


def read_events(batch_dir: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Whole lines from a byte offset on, and the offset after them. A line being written is left for later.

    Raises:
        OSError: the journal is there and cannot be read.
    """
    try:
        with (batch_dir / JOURNAL_FILE).open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    events = []
    for line in whole.splitlines():
        try:
            events.append(decode(Event, json.loads(line), JOURNAL_FILE))
        except (FormatError, ValueError):
            continue  # a line torn by a full disk
    return events, offset + len(whole)
