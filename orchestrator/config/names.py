"""What a person calls a candidate: the settings that set it apart within its study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.schema import RECIPE, RECOMPUTE_KEYS


def recompute_name(request: Mapping[str, Any]) -> str:
    """The four recompute settings in a few words: `[mla_up_proj]`, `full uniform 1`, `off`, `selective null`."""
    granularity = request["recompute_granularity"]
    modules = request["recompute_modules"]
    if granularity == "selective":
        if isinstance(modules, (list, tuple)):
            return f"[{','.join(modules)}]"
        return "selective null" if modules is None else f"selective {modules}"
    if granularity == "full":
        words = ["full", request["recompute_method"], request["recompute_num_layers"]]
        return " ".join(_shown(word) for word in words)
    if all(request[key] == granularity for key in RECOMPUTE_KEYS):
        return "off" if granularity is None else RECIPE
    return " ".join(f"{key.removeprefix('recompute_')}={_shown(request[key])}" for key in RECOMPUTE_KEYS)


def names_of(settings: Sequence[Mapping[str, str]], requests: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each candidate, no two alike.

    `settings` holds, for each candidate, what its overrides set, by key; those that are the same everywhere are left
    out, and the recompute settings always come last. Where names would still be alike the differing values of the
    whole request are added, and identical requests are numbered.
    """
    varying = _varying(settings)
    short = _short_keys(varying)
    names = []
    for given, request in zip(settings, requests, strict=True):
        words = [f"{short[key]}={given[key]}" for key in varying if key in given]
        names.append(" ".join([*words, recompute_name(request)]))
    names = _told_apart(names, requests)
    return _numbered(names)


def _varying(settings: Sequence[Mapping[str, str]]) -> list[str]:
    keys: dict[str, None] = {}
    for given in settings:
        keys.update(dict.fromkeys(given))
    return [
        key
        for key in keys
        if key != "recompute" and key not in RECOMPUTE_KEYS and len({given.get(key) for given in settings}) > 1
    ]


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    last = Counter(key.rsplit(".", 1)[-1] for key in keys)
    return {key: tail if last[tail := key.rsplit(".", 1)[-1]] == 1 else key for key in keys}


def _told_apart(names: list[str], requests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names that were alike, with the settings added that differ between their requests."""
    alike: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        alike.setdefault(name, []).append(index)
    told = list(names)
    for indices in alike.values():
        if len(indices) == 1:
            continue
        flat = {index: flattened(requests[index]) for index in indices}
        keys = sorted({key for values in flat.values() for key in values})
        differing = [key for key in keys if len({repr(values.get(key)) for values in flat.values()}) > 1]
        for index in indices:
            words = [f"{key}={_shown(flat[index].get(key))}" for key in differing[:_MOST_WORDS]]
            told[index] = " ".join([*words, names[index]])
    return told


_MOST_WORDS = 4


def _numbered(names: list[str]) -> list[str]:
    taken: set[str] = set()
    numbered = []
    for name in names:
        unique, number = name, 1
        while unique in taken:
            number += 1
            unique = f"{name} ({number})"
        taken.add(unique)
        numbered.append(unique)
    return numbered


def flattened(request: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration by dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in request.items():
        if isinstance(value, Mapping) and value:
            flat.update(flattened(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_shown(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
