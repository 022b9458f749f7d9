"""The match key: what must be equal before one trial may be held against another. Plain mappings in, a hash out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

KEY_DIGITS = 12
RECOMPUTE_FIELDS = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")

_RECOMPUTE = frozenset((*RECOMPUTE_FIELDS, "moe_layer_recompute"))
"""`moe_layer_recompute` is the old spelling that `TransformerConfig.__post_init__` turns into the four settings."""
_PRESENCE_ONLY = frozenset({"save", "load", "pretrained_checkpoint"})
"""Where a checkpoint lies changes nothing, but whether one is read or written does."""
_PATH = re.compile(
    r"(?:^|_)(?:dir|dirs|directory|path|paths|folder|file|filename|root)$ | ^path_to_ | ^(?:cwd|home|tmpdir|pwd)$",
    re.VERBOSE | re.IGNORECASE,
)
"""Fields that hold paths, by their last name, where their value is text: `use_mamba_mem_eff_path` is no path."""
_WITHOUT_EFFECT = re.compile(
    r"""
      ^(?:host|hosts|nodelist|master_addr|node_rank|local_rank)$ | (?:^|_)hostnames?$
    | (?:^|_)uuids?$ | (?:^|_)ports?$
    | ^(?:name|job_name|run_name|exp_name|experiment_name|hf_model_id|study|pid)$ | ^(?:wandb|mlflow|comet)_
    | (?:^|_)cache_(?:seed|dir|path|key|version|name)$ | ^torchinductor_ | ^triton_cache
    | ^(?:compiled_meter|stall_seconds|time_limit|wait_for_empty_gpus_seconds)$
    | ^(?:started_at|ended_at|timestamp|found|found_by|how|how_found|location)$
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""By a field's last name: hosts, GPU uuids, ports, names, cache seeds, time limits, how and when a thing was seen."""
_OF_THE_HOST = frozenset({"kernel"})
"""Nodes of one cluster are patched one after the other; the host's kernel changes neither memory nor step time."""
_NAMES_WITH_EFFECT = frozenset({"trainer.name"})
_ENVIRONMENT_WITHOUT_EFFECT = re.compile(
    r"""
      ^SLURM | ^SRUN_ | ^PMI | ^OMPI_ | ^SBATCH_ | ^SUBMITIT
    | ^(?:RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$
    | ^(?:HOST|HOSTNAME|USER|LOGNAME|HOME|PWD|OLDPWD|SHELL|SHLVL|TERM|COLUMNS|LINES|LANG|TZ|_)$ | ^LC_ | ^SSH_ | ^XDG_
    | ^(?:PATH|PYTHONPATH|LD_LIBRARY_PATH|TMPDIR|TMP|TEMP|VIRTUAL_ENV|PYTHONUNBUFFERED|PYTHONHASHSEED)$
    | ^(?:CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL)$
    | (?:^|_)(?:DIR|PATH|HOME|CACHE|FILE|PORT|UUID|SOCKET)$ | ^HF_ | ^HUGGINGFACE_ | ^WANDB_ | ^MLFLOW_
    | ^ORCHESTRATOR_ | ^TORCHELASTIC_RUN_ID$
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Measured:
    """Everything of an attempt that may decide whether it matches another."""

    effective: Mapping[str, Any]
    """The configuration after the framework finished it."""
    software: Mapping[str, Any]
    environment: Mapping[str, str]
    device_kind: str | None
    device_name: str | None
    world_size: int | None
    memory_limit: int | None
    steady_window: tuple[int, int] | None
    requested: Mapping[str, Any]
    """Only its `training` settings count, where the effective configuration does not carry them by name."""


@dataclass(frozen=True)
class MatchKey:
    """What must be equal, field by field, and its hash."""

    fields: Mapping[str, Any]
    digest: str
    by_request: bool = False
    """The trial ended before it had an effective configuration: this is what it asked for."""


@dataclass(frozen=True)
class Difference:
    """A field in which trials do not match, with each trial's value. Absent is None."""

    field: str
    values: tuple[Any, ...]


def match_key(measured: Measured) -> MatchKey:
    """The key of an attempt with an effective configuration."""
    fields: dict[str, Any] = {f"effective.{path}": value for path, value in kept(measured.effective).items()}
    software = {name: value for name, value in measured.software.items() if name not in _OF_THE_HOST}
    fields |= {f"software.{path}": value for path, value in kept(software).items()}
    fields |= {
        f"environment.{name}": value
        for name, value in measured.environment.items()
        if not _ENVIRONMENT_WITHOUT_EFFECT.search(name)
    }
    fields |= {
        "hardware.kind": measured.device_kind,
        "hardware.name": measured.device_name,
        "memory_limit": measured.memory_limit,
        "world_size": measured.world_size,
        "steady_window": list(measured.steady_window) if measured.steady_window else None,
    }
    return key_of(fields | _beyond_the_framework(measured))


def key_of(fields: Mapping[str, Any], *, by_request: bool = False) -> MatchKey:
    """A key of given fields; one that is None counts as absent."""
    known = {name: value for name, value in fields.items() if value is not None}
    return MatchKey(known, digest(known), by_request)


def kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as dotted paths, without the fields that a key leaves out."""
    found = {}
    for path, value in flatten(config).items():
        leaf = path.rpartition(".")[2]
        if value is None or leaf in _RECOMPUTE or is_offloading(path):
            continue
        if path in _NAMES_WITH_EFFECT or not _is_left_out(leaf, value):
            found[path] = True if leaf in _PRESENCE_ONLY else value
    return found


def is_offloading(path: str) -> bool:
    """Whether a dotted path is a setting that moves activations or weights to the host in the place of recomputing."""
    return path.rpartition(".")[2].lstrip("_").startswith("cpu_offloading")


def differences(keys: Sequence[MatchKey]) -> list[Difference]:
    """The fields in which keys differ, by name."""
    found = []
    for name in sorted({name for key in keys for name in key.fields}):
        values = tuple(key.fields.get(name) for key in keys)
        if any(value != values[0] for value in values[1:]):
            found.append(Difference(name, values))
    return found


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Nested mappings as dotted paths. Lists stay values; an empty mapping has no path."""
    if not isinstance(value, Mapping):
        return {path: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= flatten(item, f"{path}.{key}" if path else str(key))
    return found


def digest(value: Any) -> str:
    """The hash of a JSON value, the same for equal ones."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def _beyond_the_framework(measured: Measured) -> dict[str, Any]:
    training = measured.requested.get("training")
    if not isinstance(training, Mapping):
        return {}
    carried = {path.rpartition(".")[2] for path in flatten(measured.effective)}
    return {
        f"requested.training.{name}": value
        for name, value in training.items()
        if name not in carried and name != "steady_window"
    }


def _is_left_out(leaf: str, value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return _never_counts(leaf) or (isinstance(value, (str, list)) and _names_a_path(leaf))


@lru_cache(maxsize=4096)
def _never_counts(leaf: str) -> bool:
    return bool(_WITHOUT_EFFECT.search(leaf))


@lru_cache(maxsize=4096)
def _names_a_path(leaf: str) -> bool:
    return bool(_PATH.search(leaf))
