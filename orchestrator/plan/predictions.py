"""Predictions in a results folder: a file for each command that planned trials, and never changed after."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import __version__
from orchestrator.plan.candidate import group, trainer_of
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.past import Made, made_of
from orchestrator.predict.problem import CannotPredictError
from orchestrator.predict.read import read_job
from orchestrator.predict.verdict import range_of
from orchestrator.records.jsonfile import FormatError, decode, read_json, write_json

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan

FOLDER = "predictions"
FOLLOWS = f"orchestrator {__version__}, Megatron Core 0.16.1"
"""What a prediction of this release follows; where GPUs are used, Transformer Engine too."""
ENGINE = "Transformer Engine 2.11"


def predict_trial(
    trial: str, name: str, request: Mapping[str, Any], effective: Mapping[str, Any] | None = None
) -> Made | None:
    """A trial's prediction; None where a recipe alone knows its sizes, and `effective` does not say them."""
    try:
        reading = read_job(request, effective)
        prediction = predict_memory(reading.job)
    except CannotPredictError:
        return None
    return made_of(
        prediction,
        range_of(reading.job, prediction),
        trial=trial,
        name=name,
        model=str(group(request, "model").get("name") or "unnamed"),
        labels=labels_of(request),
        revision=f"{FOLLOWS}, {ENGINE}" if trainer_of(request) == "bridge" else FOLLOWS,
        made_at=time.time(),
        assumed=reading.assumed,
    )


def labels_of(request: Mapping[str, Any]) -> str:
    """What a request recomputes, as a person writes it."""
    granularity = request.get("recompute_granularity")
    if granularity == "full":
        return f"full {request.get('recompute_method')} {request.get('recompute_num_layers')}"
    modules = request.get("recompute_modules")
    if granularity == "selective":
        return "[" + ",".join(sorted(modules)) + "]" if isinstance(modules, (list, tuple)) else str(modules)
    return str(granularity)


def keep_predictions(results_dir: Path, plan: Plan) -> int:
    """Predict every new trial of a plan that has no prediction yet, and keep them. Returns how many.

    What a prediction was before its run, it stays: a later command never predicts the same trial again.
    """
    known = {made.trial for made in read_predictions(results_dir)}
    fresh = [entry for entry in plan.new if entry.trial not in known]
    tried = [predict_trial(entry.trial, entry.name, entry.request, entry.effective) for entry in fresh]
    made = [one for one in tried if one is not None]
    if made:
        folder = results_dir / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(folder / f"{time.time_ns()}.json", [asdict(one) for one in made])
    return len(made)


def read_predictions(results_dir: Path) -> list[Made]:
    """The first prediction of every trial that a results folder holds. What cannot be read is left out."""
    found: dict[str, Made] = {}
    for path in sorted((results_dir / FOLDER).glob("*.json")):
        try:
            content = read_json(path)
            kept = [decode(Made, one) for one in content] if isinstance(content, list) else []
        except (FormatError, OSError):
            continue
        for one in kept:
            found.setdefault(one.trial, one)
    return list(found.values())
