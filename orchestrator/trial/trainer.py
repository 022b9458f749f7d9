"""The trainers by name."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable
from typing import Any

TRAINERS = {
    "mcore_cpu": "orchestrator.trial.mcore_cpu:train",
    "bridge": "orchestrator.trial.bridge:train",
}
_EXTRAS = {"mcore_cpu": "cpu", "bridge": "bridge"}
_FRAMEWORKS = ("torch", "megatron", "transformer_engine", "numpy", "omegaconf")

Trainer = Callable[..., None]
"""`train(spec, recorder, rank, world_size, local_rank)`; it returns when the trial is over, or raises."""


class UnknownTrainerError(LookupError):
    """No trainer has this name. The message says which there are."""


def find_trainer(name: str) -> Trainer:
    """The `train` function of a trainer. A specification may name one outside of this package as `module:function`,
    which no setting does.

    Raises:
        UnknownTrainerError: there is none of this name.
        ImportError: the trainer needs a package that is not installed; `explained` says how to get it.
    """
    target = TRAINERS.get(name, name)
    module, _, function = target.partition(":")
    if not function:
        near = difflib.get_close_matches(name, TRAINERS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UnknownTrainerError(f"there is no trainer {name!r}{hint}: use {', '.join(TRAINERS)}")
    loaded = importlib.import_module(module)
    found: Any = getattr(loaded, function, None)
    if found is None:
        raise UnknownTrainerError(f"trainer {name!r}: {module} has no {function}")
    return found  # type: ignore[no-any-return]  # what a user names cannot be checked before it is called


def explained(error: ModuleNotFoundError, trainer: str) -> ModuleNotFoundError:
    """The same error, saying how to get the missing package where it is one that an extra brings."""
    package = (error.name or "").partition(".")[0]
    if package not in _FRAMEWORKS or trainer not in _EXTRAS:
        return error
    return ModuleNotFoundError(
        f"{error}: the trainer {trainer} needs it; `pip install 'recompute-orchestrator[{_EXTRAS[trainer]}]'` into "
        f"{sys.prefix}, or run the trial in an image that has it",
        name=error.name,
        path=error.path,
    )
