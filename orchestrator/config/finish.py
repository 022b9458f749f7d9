"""A checked request in its one spelling, and the values that no trainer could take refused by name."""

from __future__ import annotations

import math
import re
from typing import Any

from orchestrator.config.errors import UsageError
from orchestrator.config.schema import RECIPE, RECOMPUTE_KEYS
from orchestrator.config.sizes import problem_of_size
from orchestrator.records.redact import redact_text
from orchestrator.vocabulary.units import GB

TRAINED_GROUPS = ("model", "parallelism", "precision", "training")


def finished(request: dict[str, Any]) -> dict[str, Any]:
    """The request in its one spelling: times in seconds, and an explicit list of modules as selective recompute.

    What was given is not changed.

    Raises:
        UsageError: a value that no trainer could take, or the word `recipe` where there is no recipe.
    """
    trainer = request["trainer"]
    if trainer["name"] != "bridge":
        _refuse_recipe(request)
    request = dict(request)
    if isinstance(request["recompute_modules"], list) and request["recompute_granularity"] == RECIPE:
        request["recompute_granularity"] = "selective"
        request["recompute_method"] = None
        request["recompute_num_layers"] = None
    if isinstance(trainer["time_limit"], str):
        trainer = {**trainer, "time_limit": seconds(trainer["time_limit"], "trainer.time_limit")}
        request["trainer"] = trainer
    for setting, value in (
        ("trainer.memory_limit_gb", trainer["memory_limit_gb"]),
        ("trainer.stall_seconds", trainer["stall_seconds"]),
        ("trainer.time_limit", trainer["time_limit"]),
        ("trainer.threads_per_rank", trainer.get("threads_per_rank")),
        ("training.train_iters", request["training"]["train_iters"]),
        ("study.repeats", request["study"]["repeats"]),
        ("study.largest", request["study"]["largest"]),
        ("study.target_gb", request["study"]["target_gb"]),
        ("study.gpu_hours", request["study"]["gpu_hours"]),
        ("cluster.parallel_trials", request["cluster"]["parallel_trials"]),
        ("parallelism.world_size", request["parallelism"]["world_size"]),
    ):
        if isinstance(value, (int, float)) and not value > 0:
            raise UsageError(f"{setting} must be above zero, not {value:g}.")
        if value == math.inf:
            raise UsageError(f"{setting} must be a finite number, or null for no limit.")
    target = request["study"]["target_gb"]
    if target is not None and (problem := problem_of_size(target)) is not None:
        raise UsageError(f"study.target_gb: {problem}.")
    limit = trainer["memory_limit_gb"]
    if limit is not None and limit * GB >= 2**63:
        raise UsageError(
            f"trainer.memory_limit_gb={limit:g} is more bytes than 64 bits can count; null means no limit."
        )
    for setting, value in (
        ("cluster.retries", request["cluster"]["retries"]),
        ("trainer.learning_rate", trainer.get("learning_rate")),
    ):
        if value is not None and value < 0:
            raise UsageError(f"{setting} must be zero or more, not {value:g}.")
    _refuse_no_folder(request["results_dir"])
    _refuse_name(request["study"]["name"])
    return request


def seconds(value: float | str | None, setting: str) -> float | None:
    """A duration in seconds, from seconds, `90m`, `1.5h`, `10:30` or `1:30:00`.

    Raises:
        UsageError: none of these.
    """
    if value is None or isinstance(value, (int, float)):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", value.strip())
    if match:
        return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]
    match = re.fullmatch(r"(?:(\d+):)?(\d+):(\d{1,2})", value.strip())
    if match:
        hours, minutes, rest = (int(part or 0) for part in match.groups())
        return float(hours * 3600 + minutes * 60 + rest)
    raise UsageError(f"{setting} must be seconds, or a time as 90m, 1.5h, 10:30 or 1:30:00, not {value!r}.")


_LONGEST_NAME = 200


def _refuse_name(name: str) -> None:
    """A study's name is typed after a verb, shown in every table, and kept."""
    if not name.strip():
        raise UsageError("study.name is empty: `compare`, `show` and `cancel` need a name to find the study by.")
    if "\0" in name:
        raise UsageError("study.name has a null byte, which no database keeps.")
    if redact_text(name) != name:
        raise UsageError("study.name looks like a secret (not shown), and a name is kept and shown: give another.")
    if name.startswith("-"):
        raise UsageError(f"study.name={name[:_LONGEST_NAME]!r} begins with a dash: a verb would read it as an option.")
    if len(name) > _LONGEST_NAME:
        raise UsageError(f"study.name has {len(name)} characters; it may have {_LONGEST_NAME}.")


def _refuse_no_folder(path: str) -> None:
    if not path.strip():
        raise UsageError("results_dir is empty: name a folder, for example results_dir=results.")
    if "\0" in path:
        raise UsageError(f"results_dir={path!r} is no name of a folder.")


def _refuse_recipe(request: dict[str, Any]) -> None:
    found = [key for key in RECOMPUTE_KEYS if request[key] == RECIPE]
    found += [f"{group}.{key}" for group in TRAINED_GROUPS for key, value in request[group].items() if value == RECIPE]
    if found:
        raise UsageError(
            f"{found[0]}=recipe means as the recipe has it, and trainer={request['trainer']['name']} has no recipe: "
            "give it a value, or use trainer=bridge."
        )
