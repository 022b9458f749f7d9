"""Ready command lines of this program for a next step."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.select.match import flatten, is_offloading

PROGRAM = "python -m orchestrator"
_GROUPS = ("model", "parallelism", "precision", "training", "trainer", "revisions")
_BARE = re.compile(r"[A-Za-z0-9_./:@-]+")
_WITHOUT_EFFECT = ("model.name", "trainer.name")


@dataclass(frozen=True)
class Commands:
    """Builds commands that repeat a study with something changed. `base` are the overrides that make its trials."""

    study: str
    base: tuple[str, ...] = ()

    def run(self, *changes: str, sweep: Sequence[Sequence[str]] = ()) -> str:
        """A run with these overrides; `sweep` are module lists, each a candidate once."""
        overrides = [f"study.name={self.study}" if self.study else "", *self.base, *changes]
        if sweep:
            lists = ",".join("[" + ",".join(labels) + "]" for labels in dict.fromkeys(map(tuple, sweep)))
            overrides += ["recompute_granularity=selective", f"recompute_modules={lists}"]
        flag = "-m " if sweep else ""
        return f"{PROGRAM} {flag}" + " ".join(shlex.quote(override) for override in overrides if override)

    @staticmethod
    def verb(verb: str, *words: str) -> str:
        """One of the verbs."""
        return " ".join([PROGRAM, verb, *(shlex.quote(word) for word in words)])


def differing_overrides(requested: Mapping[str, Any], composed: Mapping[str, Any]) -> tuple[str, ...]:
    """The overrides that turn one composed configuration into a requested one, without what candidates differ in: the
    recompute settings, and offloading in their place."""
    wanted, given = (
        {path: value for name in _GROUPS for path, value in flatten({name: config.get(name, {})}).items()}
        for config in (requested, composed)
    )
    found = []
    for path, value in wanted.items():
        if path in _WITHOUT_EFFECT or is_offloading(path) or (path in given and given[path] == value):
            continue
        found.append(f"{path}={hydra_value(value)}")
    return tuple(found)


def hydra_value(value: Any) -> str:
    """A value as Hydra's grammar reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{hydra_value(str(key))}:{hydra_value(item)}" for key, item in value.items()) + "}"
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
