"""Asking a driver to stop: a file beside its batch, which it reads wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from orchestrator.records.jsonfile import FormatError, decode, read_json, write_json

CANCEL_FILE = "cancel.json"


@dataclass(frozen=True)
class Cancellation:
    """What of a batch is not wanted any more."""

    SCHEMA: ClassVar[int] = 1

    everything: bool = False
    trials: list[str] = field(default_factory=list)
    schema: int = SCHEMA


def read_cancelled(batch_dir: Path) -> tuple[bool, frozenset[str]]:
    """Whether the whole batch is cancelled, and which of its trials are."""
    try:
        asked = decode(Cancellation, read_json(batch_dir / CANCEL_FILE), str(batch_dir / CANCEL_FILE))
    except FileNotFoundError:
        return False, frozenset()
    except FormatError:
        return True, frozenset()  # somebody wanted something stopped: stopping is the side on which nothing is lost
    return asked.everything, frozenset(asked.trials)


def ask_to_cancel(batch_dir: Path, trials: Iterable[str] | None = None) -> None:
    """Cancel these trials of a batch, or all of it. Callers hold the results folder's lock.

    Raises:
        OSError: the folder cannot be written.
    """
    everything, before = read_cancelled(batch_dir)
    wanted = before if trials is None else before | frozenset(trials)
    write_json(batch_dir / CANCEL_FILE, Cancellation(everything or trials is None, sorted(wanted)))
