"""A point of a grid, what counts as the same point spelt differently, and the identity of its trials."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from orchestrator.config.schema import RECOMPUTE_KEYS as RECOMPUTE_KEYS
from orchestrator.plan.recipe import recipe_digest
from orchestrator.predict.pipeline_layout import LayoutError, parse_layout
from orchestrator.select.match import flatten, is_offloading

REQUEST_DIGITS = 14
FINGERPRINT_DIGITS = 6
ID_DIGITS = REQUEST_DIGITS + FINGERPRINT_DIGITS
"""A trial's id is 14 hex digits of what was asked and 6 of the software found (zeros where revisions are pinned)."""

_IDENTITY = "trial-identity-1"
_GROUPS = ("model", "parallelism", "precision", "training", "trainer", "revisions")
_OF_SOFTWARE = ("version", "commit", "dirty", "diff", "digest")
_OF_THE_MACHINE = frozenset({"kernel"})
"""Found by the validator on the machine that plans, which need not be the one that runs."""
_PINS = ("bridge", "megatron_core")
_TRAINER_WITHOUT_EFFECT = frozenset({"compiled_meter", "stall_seconds", "time_limit", "wait_for_empty_gpus_seconds"})


@dataclass(frozen=True)
class Candidate:
    """One composed request and what a person calls it."""

    name: str
    request: Mapping[str, Any]
    """As composed: plain JSON values, every group resolved."""

    @property
    def trainer(self) -> str:
        return trainer_of(self.request)

    @cached_property
    def asked(self) -> str:
        """What identifies the candidate, as text; the request must not be changed after this was read."""
        return canonical([_IDENTITY, normalise(self.request), recipe_digest(self.request)])

    @cached_property
    def match_key(self) -> str:
        """Groups requests whose trials get deltas against one control, before any effective configuration is known.

        Recompute and offloading to the host are what candidates differ in, as in `select.match`.
        """
        request = normalise(without_offloading(self.request))
        rest = {key: value for key, value in request.items() if key not in RECOMPUTE_KEYS}
        return _digest(canonical(rest))[:16]

    @property
    def is_control(self) -> bool:
        """Granularity `selective` with an explicitly empty module list, and nothing offloaded in its place."""
        empty = self.request.get("recompute_granularity") == "selective" and self.request.get("recompute_modules") == []
        return empty and not offloads(self.request)


def group(request: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A group of a request; an absent or malformed one is empty."""
    value = request.get(name)
    return value if isinstance(value, Mapping) else {}


def offloads(request: Mapping[str, Any]) -> bool:
    """Whether a request moves activations or weights to the host, by its model or by an override of the recipe's."""
    return any(value is True for path, value in _offloading(request) if path.rpartition(".")[2] == "cpu_offloading")


def without_offloading(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request without its settings of that, which stand in the place of recompute settings."""
    if not any(True for _ in _offloading(request)):
        return dict(request)
    trainer = group(request, "trainer")
    kept = {"model": _kept(group(request, "model"))}
    if isinstance(trainer.get("overrides"), Mapping):
        kept["trainer"] = {**trainer, "overrides": _kept(trainer["overrides"])}
    return {**request, **kept}


def _offloading(request: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for settings in (group(request, "model"), group(group(request, "trainer"), "overrides")):
        for path, value in flatten(settings).items():
            if is_offloading(path):
                yield path, value


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in settings.items() if not is_offloading(str(key))}
    pruned = {key: _kept(value) if isinstance(value, Mapping) else value for key, value in kept.items()}
    return {key: value for key, value in pruned.items() if value != {} or settings[key] == {}}


def trainer_of(request: Mapping[str, Any]) -> str:
    """`mcore_cpu` or `bridge`."""
    return str(group(request, "trainer").get("name") or "mcore_cpu")


def trial_config(request: Mapping[str, Any]) -> dict[str, Any]:
    """What ranks are given: the four recompute settings and the groups that they read."""
    chosen = {key: request.get(key) for key in RECOMPUTE_KEYS}
    return chosen | {name: dict(group(request, name)) for name in _GROUPS}


def normalise(request: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request that can change a result, with every spelling of one configuration made equal.

    Only spellings that the framework itself reads alike (`TransformerConfig.__post_init__` in Megatron Core 0.16.1):
    a null module list is `["core_attn"]`, the order of modules is free, settings that a granularity ignores are
    dropped. What a recipe fills in is left alone.
    """
    whole = trainer_of(request) != "bridge"
    model = {key: value for key, value in group(request, "model").items() if key != "name"}
    trainer = {key: value for key, value in group(request, "trainer").items() if key not in _TRAINER_WITHOUT_EFFECT}
    return {
        **_normal_recompute({key: request.get(key) for key in RECOMPUTE_KEYS}),
        "model": _normal_model(model) if whole else model,
        "parallelism": _normal_parallelism(dict(group(request, "parallelism")), whole=whole),
        "precision": dict(group(request, "precision")),
        "training": dict(group(request, "training")),
        "trainer": trainer,
        "revisions": pins(request),
        "cluster": _normal_cluster(request),
    }


def canonical(value: Any) -> str:
    """JSON that is equal for equal values: sorted keys, whole floats as integers, non-finite ones by name."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def request_digest(candidate: Candidate, repeat: int = 0) -> str:
    """The part of a trial's id that does not depend on the software found."""
    return _digest(f"{candidate.asked} {repeat}")[:REQUEST_DIGITS]


def trial_id(candidate: Candidate, repeat: int = 0, fingerprint: Mapping[str, Any] | None = None) -> str:
    """The identity of a trial: 20 hex digits.

    `fingerprint` is the software found (names to versions and commits, or to what a record says of them, of which
    only version, commit and the state of the work tree count); it counts only where the request pins nothing, since a
    pinned trial runs the pinned revisions or fails.
    """
    software = "0" * FINGERPRINT_DIGITS
    if fingerprint and not pins(candidate.request):
        software = _digest(canonical(_what_decides(fingerprint)))[:FINGERPRINT_DIGITS]
    return request_digest(candidate, repeat) + software


def pins(request: Mapping[str, Any]) -> dict[str, str]:
    """The revisions that the request names; where their repositories lie is no part of it."""
    revisions = group(request, "revisions")
    return {name: str(revisions[name]) for name in _PINS if revisions.get(name) not in (None, "")}


def other_fingerprints(trial: str, known: Iterable[str]) -> list[str]:
    """The known trials that asked for the same and found other software."""
    return sorted(other for other in known if other != trial and other[:REQUEST_DIGITS] == trial[:REQUEST_DIGITS])


def _what_decides(software: Mapping[str, Any]) -> dict[str, Any]:
    """The software found without where it lies and how it was found."""
    return {
        name: {key: item.get(key) for key in _OF_SOFTWARE if item.get(key)} if isinstance(item, Mapping) else item
        for name, item in software.items()
        if name not in _OF_THE_MACHINE
    }


def _normal_recompute(chosen: dict[str, Any]) -> dict[str, Any]:
    granularity = chosen["recompute_granularity"]
    modules = chosen["recompute_modules"]
    if granularity is None:
        return {"recompute_granularity": None}
    if granularity == "full":
        return {key: chosen[key] for key in RECOMPUTE_KEYS if key != "recompute_modules"}
    if granularity == "selective" and modules is None:
        modules = ["core_attn"]
    if isinstance(modules, Sequence) and not isinstance(modules, str):
        modules = sorted({str(module) for module in modules})
    return chosen | {"recompute_modules": modules}


def _normal_model(model: dict[str, Any]) -> dict[str, Any]:
    hidden, heads, ffn = (model.get(key) for key in ("hidden_size", "num_attention_heads", "ffn_hidden_size"))
    if ffn is None and is_whole(hidden):
        ffn = 4 * hidden
    derived = {"ffn_hidden_size": ffn, "num_query_groups": heads}
    if model.get("num_moe_experts") is not None:
        derived["moe_ffn_hidden_size"] = ffn
    if is_whole(hidden) and is_whole(heads) and heads > 0:
        derived["kv_channels"] = hidden // heads
    for key, value in derived.items():
        if model.get(key) is None and value is not None:
            model[key] = value
    if model.get("cuda_graph_impl", "none") == "none":
        model.pop("cuda_graph_scope", None)
    return model


def _normal_cluster(request: Mapping[str, Any]) -> dict[str, Any]:
    """The hardware, image, environment and spread over nodes; what equals a plain local run is left out."""
    cluster = group(request, "cluster")
    container = group(cluster, "container")
    chosen = {key: cluster.get(key) for key in ("gpu_type", "environment", "setup")}
    chosen |= {"image": container.get("image"), "digest": container.get("digest"), "nodes": cluster.get("nodes")}
    ranks, per_node = group(request, "parallelism").get("world_size"), cluster.get("gpus_per_node")
    if chosen["nodes"] is None and is_whole(ranks) and is_whole(per_node) and per_node > 0:
        chosen["nodes"] = -(-ranks // per_node)
    if chosen["nodes"] == 1:
        chosen["nodes"] = None
    return {key: value for key, value in chosen.items() if value not in (None, {}, [], "")}


def _normal_parallelism(parallelism: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    if whole and parallelism.get("etp") is None:
        parallelism["etp"] = parallelism.get("tp")
    if isinstance(parallelism.get("layout"), str):
        # One that cannot be read stays as it was written: the rules reject it by name.
        with contextlib.suppress(LayoutError):
            parallelism["layout"] = parse_layout(parallelism["layout"])
    return parallelism


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return repr(value)
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(canonical(item) for item in value)
    if isinstance(value, (str, int, bool)) or value is None:
        return value
    return str(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
