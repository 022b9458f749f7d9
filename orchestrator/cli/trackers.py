"""Copies of finished trials for the trackers that a study names (`study.sinks`): after collecting, in another process.

Trials know nothing of it. A tracker that is missing, down or slow costs a line on stderr, and changes no exit code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.storage import DATABASE_VARIABLE, Place

if TYPE_CHECKING:
    from orchestrator.store.database import Store

_SECONDS = 120.0
"""What one tracker may take."""
_ERROR = "error: "
"""How every verb begins the line that says why it failed."""


def wanted(store: Store, results_dir: Path) -> dict[str, list[str]]:
    """The trackers of each study that names some and ran in this folder: a colleague's study is not ours to send."""
    from orchestrator.store.overview import batch_folders, study_settings

    with store.reading() as connection:
        found = study_settings(connection)
        named = {study: list(settings["sinks"]) for study, settings in found.items() if settings.get("sinks")}
        folders = batch_folders(connection, named) if named else {}
    here = results_dir.absolute()
    return {
        study: trackers
        for study, trackers in named.items()
        if any(Path(folder).is_relative_to(here) for folder in folders.get(study, ()))
    }


def send_wanted(place: Place) -> None:
    """Send what has ended of every study that names a tracker. Never raises on a tracker's account."""
    from orchestrator.store.database import open_store
    from orchestrator.store.failures import StoreMissing

    if place.results_dir is None:
        return
    try:
        with open_store(place.url) as store:
            trackers = wanted(store, place.results_dir)
    except StoreMissing:
        return
    send_on(trackers, place.url, place.results_dir)


def send_on(trackers: Mapping[str, Sequence[str]], url: str, results_dir: Path) -> None:
    """Send what has ended of each study to its trackers; what is there already stays as it is. Never raises.

    The database must not be open to be written.
    """
    from orchestrator.report.text import plain

    for study, named in trackers.items():
        for tracker in named:
            problem = _problem(study, tracker, url, results_dir)
            if problem:
                again = f"`send {study} --to {tracker}` tries again."
                print(plain(f"note: not all of {study} is in {tracker}: {problem} {again}"), file=sys.stderr)


def _problem(study: str, tracker: str, url: str, results_dir: Path) -> str | None:
    # The address of a database may hold a password, which a command line would show to everyone.
    environment = os.environ | {DATABASE_VARIABLE: url}
    command = [sys.executable, "-m", "orchestrator", "send", *_options(tracker, results_dir), "--", study]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {_SECONDS:.0f} s."
    except OSError as error:
        return f"{error.strerror or error}."
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.splitlines() if line.startswith(_ERROR)]
    return said[-1].removeprefix(_ERROR) if said else f"it ended with {done.returncode}."


def _options(tracker: str, results_dir: Path) -> list[str]:
    """As the tracker's own environment variables say; what they leave open goes into the results folder."""
    options = ["--to", tracker, "--results", str(results_dir)]
    if tracker == "mlflow":
        return [
            *options,
            "--uri",
            os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{results_dir.absolute()}/mlflow.db",
        ]
    offline = ["--offline"] if os.environ.get("WANDB_MODE") == "offline" else []
    project = ["--project", os.environ["WANDB_PROJECT"]] if os.environ.get("WANDB_PROJECT") else []
    return [*options, *offline, *project, "--dir", os.environ.get("WANDB_DIR") or str(results_dir)]
