"""The exact revision that a plan is judged against, and its own validator's answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

NEWEST_KNOWN = "0.16.1"
"""The Megatron Core release that the rules were last checked against, field by field."""


@dataclass(frozen=True)
class Revision:
    """A Megatron Core revision as far as rules need it."""

    core: str = NEWEST_KNOWN
    """Its version, as the package names it."""
    labels: frozenset[str] | None = None
    """Module labels that it allows, where it was asked; None where it was not."""

    @property
    def title(self) -> str:
        return f"Megatron Core {self.core}"

    def at_least(self, version: str) -> bool:
        """Whether this revision is that release or newer; a development version counts as its release."""
        return _numbers(self.core) >= _numbers(version)


@dataclass(frozen=True)
class Verdict:
    """What the framework's own validation said about one configuration."""

    ok: bool
    message: str | None = None
    open: tuple[str, ...] = ()
    """What could not be judged where it ran."""
    software: Mapping[str, Any] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)
    """What a recipe turned out to mean: `parallelism`, `training` and `environment`, where one was asked."""
    effective: Mapping[str, Any] | None = None
    """What predictions read of the configuration that the framework finished, where a recipe was asked."""
    estimate: Mapping[str, int | None] | None = None
    """What Bridge's own estimator says, bytes: `weights_and_optimizer` and `activations`."""


def revision_of(software: Mapping[str, Any]) -> Revision | None:
    """The Megatron Core in a validator's account of its software; None where it names none."""
    found = software.get("megatron_core")
    if isinstance(found, Mapping):
        found = found.get("version")
    return Revision(str(found)) if found else None


@lru_cache(maxsize=256)
def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))
