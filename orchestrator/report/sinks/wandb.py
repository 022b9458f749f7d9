"""Runs in Weights & Biases, or in its offline folder, to be synced later."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.report.sinks.outgoing import PROGRAM, Outgoing


class WandbSink:
    """One group a study. Offline, nothing leaves this machine: `wandb sync` sends it."""

    def __init__(self, project: str | None, folder: Path, *, offline: bool) -> None:
        """`folder` is where W&B keeps its own files.

        Raises:
            EnvironmentFailure: wandb is not installed.
        """
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise EnvironmentFailure("W&B is not installed: pip install 'recompute-orchestrator[wandb]'.") from error
        self._project = project or PROGRAM
        self._folder = folder
        self._offline = offline

    def send(self, run: Outgoing) -> bool:
        if self._offline and any(self._folder.glob(f"wandb/offline-run-*-{run.id}/*.wandb")):
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        made = self._wandb.init(
            project=self._project,
            group=run.study or None,
            name=run.name,
            id=run.id,
            tags=[run.tags["label"]],
            config={"settings": dict(run.settings), **run.tags},
            dir=str(self._folder),
            mode="offline" if self._offline else "online",
            resume=None if self._offline else "allow",
            settings=self._wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        known = bool(made.resumed)
        if not known:
            for number, loss in sorted(run.losses.items()):
                made.log({"loss": loss}, step=number)
            made.summary.update(dict(run.metrics))
        made.finish(exit_code=0 if run.tags.get("label") == "pass" else 1)
        return not known
