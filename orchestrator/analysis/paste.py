"""A candidate as settings to paste: Python lines for a recipe, overrides for Bridge's command line and for ours."""

from __future__ import annotations

import json
import shlex
from typing import Any

from orchestrator.analysis.candidates import Candidate
from orchestrator.analysis.recompute import recompute_prefix
from orchestrator.analysis.rows import Row
from orchestrator.select.match import RECOMPUTE_FIELDS, flatten

_MODEL = "model."


def settings_of(candidate: Candidate) -> dict[str, Any] | None:
    """Every setting that makes this candidate, so that nothing of the recipe's own is left over (Megatron Core refuses
    `recompute_num_layers` beside `selective`); None where the candidate leaves a setting to its recipe.
    """
    recompute = candidate.recompute
    if recompute.follows_recipe or recompute.granularity not in ("selective", "full", None):
        return None
    chosen = dict.fromkeys(RECOMPUTE_FIELDS)
    settings: dict[str, Any] = chosen | {"recompute_granularity": recompute.granularity}
    if recompute.granularity == "selective":
        settings["recompute_modules"] = list(recompute.modules or ())
    elif recompute.granularity == "full":
        settings |= {"recompute_method": recompute.method, "recompute_num_layers": recompute.num_layers}
    if recompute.granularity != "selective":
        del settings["recompute_modules"]
    return settings | dict(candidate.offloading)


def python_lines(candidate: Candidate, row: Row) -> list[str]:
    """Assignments on a recipe's `cfg`."""
    settings = settings_of(candidate)
    return [f"cfg.{_prefix(row)}{name} = {_python(value)}" for name, value in (settings or {}).items()]


def bridge_overrides(candidate: Candidate, row: Row) -> str:
    """The same for the command line of Bridge's scripts, quoted for a shell."""
    settings = settings_of(candidate)
    return _joined(_prefix(row), settings or {})


def our_overrides(candidate: Candidate) -> str:
    """The same for `python -m orchestrator`, quoted for a shell. Offloading is a setting of the model here too."""
    settings = settings_of(candidate) or {}
    ours = {name if name in RECOMPUTE_FIELDS else f"{_MODEL}{name}": value for name, value in settings.items()}
    return _joined("", ours)


def modules_override(modules: list[str], key: str = "recompute_modules") -> str:
    """One override of a module list, quoted for a shell."""
    return shlex.quote(f"{key}={_hydra(modules)}")


def _prefix(row: Row) -> str:
    """Where the model keeps its recompute settings: `model.`, or `model.transformer.` in some models of Bridge 0.7."""
    found = recompute_prefix(flatten(row.effective)) if row.effective is not None else None
    return found if found and found.startswith(_MODEL) else _MODEL


def _joined(prefix: str, settings: dict[str, Any]) -> str:
    return " ".join(shlex.quote(f"{prefix}{name}={_hydra(value)}") for name, value in settings.items())


def _python(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, str)) else repr(value)


def _hydra(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(str(item) for item in value) + "]"
    return str(value)
