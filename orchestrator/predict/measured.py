"""Rows that somebody measured, held against the prediction of the same settings. Pure.

A row is one JSON object. What it recomputes is `granularity`, `modules`, `method`, `num_layers`, or Megatron Core's
four names. Further settings are keys of their own name (`micro_batch_size`, `seq_length`, `exp_avg_dtype`, `tp`, ...),
groups (`model`, `training`, `precision`, `parallelism`, `trainer`), or `overrides`, a list as on a command line;
`effective` is a finished configuration.

Peaks (bytes) are `phases`, windows of the first (`..._it0`) and of all later iterations (`..._it1`) that tell no replay
from the backward around it, or stages of our own records: `first_iteration` and `later_iterations`, or `iterations`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.predict.job import BLOCK, FULL, SELECTIVE, UNIFORM
from orchestrator.predict.memory import RankMemory
from orchestrator.vocabulary import Stage

SETUP, FORWARD, BACKWARD, OPTIMIZER = "setup", "forward", "backward", "optimizer"
SAVING, PARAMETERS = "saving", "parameters"
GOALS: Mapping[str, float] = {PARAMETERS: 0.0, FORWARD: 0.01, SAVING: 0.03, BACKWARD: 0.03, OPTIMIZER: 0.03}
"""What an uncalibrated prediction should be within, as a share of what was measured."""
FIRST, LATER = "first", "later"
_STAGES: Mapping[str, tuple[str, ...]] = {
    SETUP: ("model_build", "optimizer_build", "data_build"),
    FORWARD: ("forward",),
    BACKWARD: ("backward", "replay"),
    OPTIMIZER: ("optimizer_init", "optimizer_step"),
}
_GROUPS = ("model", "training", "precision", "parallelism", "trainer")
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "training": ("seq_length", "micro_batch_size", "global_batch_size"),
    "parallelism": ("tp", "pp", "vpp", "cp", "ep", "etp", "sequence_parallel", "world_size"),
    "precision": (
        "params_dtype", "grad_reduce_in_fp32", "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype",
        "exp_avg_dtype", "exp_avg_sq_dtype", "fp8", "fp8_recipe",
    ),
}  # fmt: skip
_READ = frozenset(
    [
        *("granularity", "modules", "method", "num_layers"),
        *("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers"),
        *("name", "overrides", "effective", "software", "params"),
        *("phases", "setup", "first_iteration", "later_iterations", "iterations"),
    ]
)


class NotMeasuredError(ValueError):
    """A row that cannot be read; the message says what is wrong with it."""


@dataclass(frozen=True)
class Measured:
    """One row. Peaks are bytes by iteration (`first` or `later`) and what ran."""

    name: str
    recompute: Mapping[str, Any]
    peaks: Mapping[tuple[str, str], int]
    overrides: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By group of a request, beyond what it recomputes."""
    effective: Mapping[str, Any] | None = None
    parameters: int | None = None
    unread: tuple[str, ...] = ()
    """Its keys that mean nothing here."""
    between_steps_too: bool = False
    """Its backward window reaches back to the end of the step before."""

    @property
    def job(self) -> str:
        """Everything but what it recomputes: rows that have the same are held against one control."""
        return json.dumps([self.overrides, self.settings], sort_keys=True, default=str)

    @property
    def is_control(self) -> bool:
        return self.recompute.get("recompute_granularity") == SELECTIVE and not self.recompute["recompute_modules"]


@dataclass(frozen=True)
class Held:
    """One figure of a row, predicted and measured. Bytes, and numbers for parameters."""

    name: str
    iteration: str
    what: str
    predicted: int
    measured: int

    @property
    def share(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1

    @property
    def within(self) -> bool | None:
        """Whether it is within its goal; None where there is no goal."""
        goal = GOALS.get(self.what)
        return None if goal is None else abs(self.share) <= goal


@dataclass
class _Peaks:
    found: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, iteration: str, what: str, size: Any) -> None:
        if isinstance(size, float) and size.is_integer():
            size = int(size)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            self.found[iteration, what] = max(size, self.found.get((iteration, what), 0))


def read_measured(row: Mapping[str, Any]) -> Measured:
    """A row as it was written down.

    Raises:
        NotMeasuredError: it has no peaks, or settings that cannot be read.
    """
    effective = row.get("effective")
    recompute = _recompute(row, effective)
    peaks = _Peaks()
    phases = row.get("phases")
    if isinstance(phases, Mapping):
        _read_phases(phases, peaks)
    else:
        _read_stages(row, peaks)
    if not peaks.found:
        raise NotMeasuredError("it has no peaks: neither phases, nor first_iteration, nor iterations with stages")
    overrides = row.get("overrides") or ()
    if not isinstance(overrides, (list, tuple)) or not all(isinstance(word, str) for word in overrides):
        raise NotMeasuredError("its overrides are no list of settings as on a command line")
    if overrides and isinstance(effective, Mapping):
        raise NotMeasuredError("it has overrides beside effective: say what changes by groups, for example model")
    settings, known = _settings(row)
    words = [f"{key}={value}" for group in settings.values() for key, value in group.items()]
    name, parameters = row.get("name"), row.get("params")
    return Measured(
        name=str(name) if name else " ".join([_title(recompute), *overrides, *words]),
        recompute=recompute,
        peaks=peaks.found,
        overrides=tuple(overrides),
        settings=settings,
        effective=_finished(row),
        parameters=parameters if isinstance(parameters, int) else None,
        unread=tuple(key for key in row if key not in _READ | known),
        between_steps_too=isinstance(phases, Mapping),
    )


def hold(row: Measured, rank: RankMemory, control: tuple[Measured, RankMemory] | None) -> list[Held]:
    """Every figure of a row beside its prediction; what recompute saves against a control of the same settings."""
    found = []
    if row.parameters:
        found.append(Held(row.name, FIRST, PARAMETERS, rank.state.parameters, row.parameters))
    for (iteration, what), size in row.peaks.items():
        if size:
            found.append(Held(row.name, iteration, what, _predicted(row, rank, iteration, what), size))
    if control is None or row.is_control:
        return found
    theirs, base = control
    for iteration in (FIRST, LATER):
        ours, other = row.peaks.get((iteration, FORWARD)), theirs.peaks.get((iteration, FORWARD))
        if ours is None or other is None or other == ours:
            continue
        predicted = _predicted(theirs, base, iteration, FORWARD) - _predicted(row, rank, iteration, FORWARD)
        found.append(Held(row.name, iteration, SAVING, predicted, other - ours))
    return found


def worst(held: Iterable[Held]) -> dict[str, Held]:
    """The figure farthest off of each kind."""
    found: dict[str, Held] = {}
    for one in held:
        if one.what not in found or abs(one.share) > abs(found[one.what].share):
            found[one.what] = one
    return found


def _predicted(row: Measured, rank: RankMemory, iteration: str, what: str) -> int:
    peaks = rank.first if iteration == FIRST else rank.steady
    if what == SETUP:
        return rank.first[Stage.MODEL_BUILD]
    sizes = [peaks[Stage(name)] for name in _STAGES[what] if Stage(name) in peaks]
    if what == BACKWARD and iteration == LATER and row.between_steps_too:
        sizes.append(rank.after_step)
    return max(sizes)


def _recompute(row: Mapping[str, Any], effective: Any) -> dict[str, Any]:
    names = ("granularity", "modules", "method", "num_layers")
    if "granularity" in row or "modules" in row:
        given = {f"recompute_{name}": row.get(name) for name in names}
        given["recompute_granularity"] = row.get("granularity", SELECTIVE)
    elif "recompute_granularity" in row or "recompute_modules" in row:
        given = {f"recompute_{name}": row.get(f"recompute_{name}") for name in names}
        given["recompute_granularity"] = row.get("recompute_granularity", SELECTIVE)
    elif isinstance(effective, Mapping) and isinstance(effective.get("model"), Mapping):
        model = effective["model"]
        given = {f"recompute_{name}": model.get(f"recompute_{name}") for name in names}
    else:
        raise NotMeasuredError("it does not say what it recomputes: granularity, modules, method, num_layers")
    return _plain(given)


def _settings(row: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    found: dict[str, dict[str, Any]] = {}
    known: set[str] = set()
    for group in _GROUPS:
        given = row.get(group)
        if isinstance(given, Mapping):
            found[group] = dict(given)
            known.add(group)
    for group, names in _SETTINGS.items():
        for name in names:
            if name in row:
                found.setdefault(group, {})[name] = row[name]
                known.add(name)
    return found, known


def _finished(row: Mapping[str, Any]) -> dict[str, Any] | None:
    effective, software = row.get("effective"), row.get("software")
    if not isinstance(effective, Mapping):
        return None
    return {"software": software, **effective} if isinstance(software, Mapping) else dict(effective)


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    granularity, modules = given["recompute_granularity"], given["recompute_modules"]
    if granularity not in (None, SELECTIVE, FULL):
        raise NotMeasuredError(f"its granularity {granularity!r:.40} is none of selective, full, null")
    if granularity == SELECTIVE and modules is None:
        modules = ["core_attn"]
    if granularity == SELECTIVE and not (isinstance(modules, list) and all(isinstance(one, str) for one in modules)):
        raise NotMeasuredError(f"its modules {modules!r:.60} are no list of labels")
    if granularity == FULL and not isinstance(given["recompute_num_layers"], int):
        raise NotMeasuredError("full recompute needs its num_layers, a whole number")
    if granularity == FULL and given["recompute_method"] not in (UNIFORM, BLOCK):
        raise NotMeasuredError("full recompute needs its method, uniform or block")
    whole = granularity == FULL
    return {
        "recompute_granularity": granularity,
        "recompute_modules": modules if granularity == SELECTIVE else None,
        "recompute_method": given["recompute_method"] if whole else None,
        "recompute_num_layers": given["recompute_num_layers"] if whole else None,
    }


def _read_phases(phases: Mapping[str, Any], peaks: _Peaks) -> None:
    # A run that ended in its second iteration left a window that had only begun.
    whole = all(isinstance(phases.get(f"{what}_it1"), Mapping) for what in (FORWARD, BACKWARD, OPTIMIZER))
    for what in (SETUP, FORWARD, BACKWARD, OPTIMIZER):
        for key, iteration in ((what, FIRST), (f"{what}_it0", FIRST), (f"{what}_it1", LATER)):
            window = phases.get(key)
            if isinstance(window, Mapping) and (iteration == FIRST or whole):
                peaks.add(iteration, what, window.get("peak_allocated"))


def _read_stages(row: Mapping[str, Any], peaks: _Peaks) -> None:
    setup, first, later = row.get("setup"), row.get("first_iteration"), row.get("later_iterations")
    for iteration, stages in ((FIRST, setup), (FIRST, first), (LATER, later)):
        if isinstance(stages, Mapping):
            _add_stages(iteration, stages, peaks)
    for one in _listed(row.get("iterations")):
        if not isinstance(one, Mapping):
            continue
        rows = _listed(one.get("stages"))
        named = {entry.get("stage"): entry for entry in rows if isinstance(entry, Mapping)}
        _add_stages(FIRST if one.get("number") == 1 else LATER, named, peaks)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _add_stages(iteration: str, stages: Mapping[Any, Any], peaks: _Peaks) -> None:
    for what, names in _STAGES.items():
        for name in names:
            entry = stages.get(name)
            if isinstance(entry, Mapping):
                peaks.add(iteration, what, entry.get("peak_allocated"))


def _title(recompute: Mapping[str, Any]) -> str:
    if recompute["recompute_granularity"] == FULL:
        return f"full {recompute['recompute_method']} {recompute['recompute_num_layers']}"
    modules: Sequence[str] = recompute["recompute_modules"] or ()
    return "off" if recompute["recompute_granularity"] is None else f"[{','.join(modules)}]"
