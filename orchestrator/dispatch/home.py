"""Where a batch lies: its folder says so, and not the path written in it, which a copy or a moved folder keeps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.records import layout
from orchestrator.records.jsonfile import FormatError, decode, read_json
from orchestrator.records.spec import Batch, TrialSpec


def at_home(batch: Batch, batch_dir: Path) -> Batch:
    """The batch as one of the results folder in which its folder lies; another name of that folder is kept."""
    home = batch_dir.absolute().parent.parent
    if is_same(Path(batch.results_dir), home):
        return batch
    launcher = dict(batch.launcher)
    package = launcher.get("package")
    if isinstance(package, str) and Path(package).is_relative_to(batch.results_dir):
        launcher["package"] = str(home / Path(package).relative_to(batch.results_dir))
    return replace(batch, results_dir=str(home), launcher=launcher)


def spec_at_home(spec: TrialSpec, run_dir: Path) -> TrialSpec:
    """The specification of the attempt in whose folder it lies."""
    return spec if is_same(Path(spec.run_dir), run_dir) else replace(spec, run_dir=str(run_dir.absolute()))


def original_of(batch_dir: Path) -> Path | None:
    """The results folder that this batch was copied from, where it still lies there; None for one that was not copied,
    or moved, or is too damaged to say."""
    try:
        batch = decode(Batch, read_json(batch_dir / layout.BATCH_FILE), str(batch_dir / layout.BATCH_FILE))
        original = Path(batch.results_dir)
        there = layout.batch_dir(original, batch_dir.name) / layout.BATCH_FILE
        return None if is_same(original, batch_dir.absolute().parent.parent) or not there.exists() else original
    except (FormatError, OSError):
        return None


def refuse_copy(batch_dir: Path, original: Path) -> EnvironmentFailure:
    """What to say to somebody who wants to act, in a copy, on a batch that its original has in hand."""
    return EnvironmentFailure(
        f"Batch {batch_dir.name} of {batch_dir.absolute().parent.parent} is a copy of one that runs or waits in "
        f"{original}: act on it there, with --results {original}."
    )


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths name one folder, also through links."""
    if one == other:
        return True
    try:
        return os.path.samefile(one, other)  # noqa: PTH121
    except OSError:
        return False
