"""Where things lie below a results folder, and which folders may be trusted."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

BATCH_FILE = "batch.json"
ATTEMPT_FILE = "attempt.json"
SPEC_FILE = "spec.json"
DECISIONS_FILE = "decisions.jsonl"
"""Beside a batch whose trials a search chose: what it decided."""
SEARCH_FILE = "search.json"
"""Beside a batch whose trials a search chooses: what it chooses among."""
_RANK_FILE = re.compile(r"rank-(\d{5})\.json")


def runs_dir(results_dir: Path) -> Path:
    return results_dir / "runs"


def trial_dir(results_dir: Path, trial: str) -> Path:
    return runs_dir(results_dir) / trial


def attempt_dir(results_dir: Path, trial: str, attempt: str) -> Path:
    return trial_dir(results_dir, trial) / attempt


def batch_dir(results_dir: Path, batch: str) -> Path:
    return results_dir / "batches" / batch


def untrusted_trials(results_dir: Path, trials: Iterable[str]) -> dict[str, str]:
    """Of these trials those whose folder's records would not be read, each with why: a run in it would never count."""
    found = {}
    for trial in trials:
        folder = trial_dir(results_dir, trial)
        try:
            check_private(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            found[trial] = str(error)
            continue
        if not folder.is_dir():
            found[trial] = f"{folder} is no folder: remove it"
    return found


def rank_file(run_dir: Path, rank: int) -> Path:
    """The record of one rank."""
    return run_dir / f"rank-{rank:05d}.json"


def rank_log(run_dir: Path, rank: int) -> Path:
    """Everything the rank's trainer printed, stdout and stderr together."""
    return run_dir / f"rank-{rank:05d}.log"


def rank_files(run_dir: Path) -> dict[int, Path]:
    """The rank records of an attempt's folder, by rank."""
    found = {}
    for path in run_dir.iterdir():
        match = _RANK_FILE.fullmatch(path.name)
        if match:
            found[int(match.group(1))] = path
    return dict(sorted(found.items()))


def beacon_file(beacon_dir: Path, rank: int) -> Path:
    """The memory map a rank keeps while it runs."""
    return beacon_dir / f"rank-{rank:05d}.beacon"


def facts_file(beacon_dir: Path, rank: int) -> Path:
    """What the trainer found out once: software, device, effective configuration, exception."""
    return beacon_dir / f"rank-{rank:05d}.facts.json"


def make_private_dir(path: Path) -> None:
    """Have a folder; what of it is missing, parents included, is created so that only this user can enter.

    A folder that is there keeps its mode, which may be somebody's choice (/tmp, a project's folder): `check_private`
    says whether it can be trusted.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def new_attempt_dir(results_dir: Path, trial: str) -> Path:
    """Create the folder of the trial's next attempt. Two callers at once get two attempts.

    Raises:
        OSError: the results folder cannot be written.
    """
    parent = trial_dir(results_dir, trial)
    make_private_dir(parent)
    taken = [int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()]
    number = max(taken, default=0)
    while True:
        number += 1
        path = parent / f"{number:03d}"
        try:
            path.mkdir(mode=0o700)
            return path
        except FileExistsError:
            continue


class UntrustedFolderError(PermissionError):
    """A folder that others could have written to."""


def check_private(path: Path) -> None:
    """Refuse what another user owns or could write, and what is neither file nor folder: a pipe would never end.

    Raises:
        UntrustedFolderError: with what would make it safe.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise UntrustedFolderError(f"{path} is neither a file nor a folder: remove it")
    if status.st_uid != os.geteuid():
        raise UntrustedFolderError(
            f"{path} belongs to another user (uid {status.st_uid}): records are only read from your own"
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise UntrustedFolderError(
            f"{path} can be written by others: `chmod go-w {path}` first, if you trust what is in it"
        )
