"""Candidates of a study's mode: what a command line asks for, turned into lists of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.errors import UsageError
from orchestrator.config.multirun import Composed
from orchestrator.config.nearest import nearest
from orchestrator.plan.candidate import Candidate, offloads
from orchestrator.plan.finding import Kind
from orchestrator.plan.labels import allowed_labels
from orchestrator.plan.rules import check
from orchestrator.plan.subject import Subject
from orchestrator.plan.verdict import Revision
from orchestrator.select.modes import ESCALATE, GRID, LATTICE, MODES, ONE_AT_A_TIME, lattice, one_at_a_time

SELECTIVE = "selective"
_FULL: Mapping[str, Any] = {
    "recompute_granularity": "full",
    "recompute_modules": None,
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_FULL_NAME = "full uniform 1"


def expand_mode(composed: Sequence[Composed], revision: Revision | None = None) -> tuple[Composed, ...]:
    """The candidates of `study.mode`: as composed for `grid`; else sets of labels for each composed request.

    `one_at_a_time` starts from the request's own `recompute_modules`; `lattice` takes all sets of at most
    `study.largest` labels. `escalate` searches what was composed, or, of a single request, what `lattice` would take
    and full recompute. Labels that the rules refuse or call without effect on the model are left out.

    Raises:
        UsageError: an unknown mode, or a base that is no list of labels.
    """
    study = composed[0].request["study"]
    mode = str(study["mode"])
    if mode == ESCALATE and (one := next((one for one in composed if offloads(one.request)), None)):
        raise UsageError(
            f"study.mode=escalate goes by predictions, and what {one.name} offloads to the host is not predicted: "
            "leave it out of the search, or measure it in a study of its own."
        )
    if mode == GRID:
        return tuple(composed)
    if mode == ESCALATE and len(composed) > 1:
        return _with_control(composed)
    if mode not in MODES:
        near = nearest(mode, MODES)
        hint = f"did you mean {near}?" if near else f"there is {', '.join(MODES)}"
        raise UsageError(f"study.mode={mode} is no mode; {hint}")
    known = sorted(allowed_labels(revision or Revision()))
    found: dict[str, Composed] = {}
    for one in composed:
        useless = without_effect(one.request, known, revision)
        if mode == ONE_AT_A_TIME:
            sets = one_at_a_time(_base(one.request), known, without_effect=useless)
        else:
            assert mode in (LATTICE, ESCALATE), "every other mode was refused"
            sets = lattice(known, int(study.get("largest", 2)), without_effect=useless)
        for chosen in sets:
            candidate = _with(one, chosen, several=len(composed) > 1)
            found.setdefault(candidate.name, candidate)
        if mode == ESCALATE:
            found.setdefault(_FULL_NAME, _full(one))
    return tuple(found.values())


def dropped_from_base(composed: Sequence[Composed], revision: Revision | None = None) -> dict[str, str]:
    """Labels of the lists that `one_at_a_time` starts from, which the rules have left out, with why."""
    dropped: dict[str, str] = {}
    for one in composed:
        if one.request["study"]["mode"] != ONE_AT_A_TIME:
            continue
        base = _base(one.request)
        for label in sorted(without_effect(one.request, base, revision)):
            control = {finding.rule for finding, _ in _findings(one.request, (), revision)}
            found = [one for one, _ in _findings(one.request, (label,), revision) if one.rule not in control]
            dropped[label] = next(one.message for one in found if one.kind in (Kind.INVALID, Kind.NO_EFFECT))
    return dropped


def _with_control(composed: Sequence[Composed]) -> tuple[Composed, ...]:
    """What a search was given, behind the control that it starts from."""
    if any(Candidate(one.name, one.request).is_control for one in composed):
        return tuple(composed)
    return (_with(composed[0], (), several=False), *composed)


def _full(composed: Composed) -> Composed:
    words = tuple(f"{key}={value}" for key, value in _FULL.items() if value is not None)
    request = {**composed.request, **_FULL}
    return replace(composed, name=_FULL_NAME, overrides=(*composed.overrides, *words), request=request)


def without_effect(
    request: Mapping[str, Any], labels: Iterable[str], revision: Revision | None = None
) -> frozenset[str]:
    """Labels that could only be refused, or do nothing, for this request: what the rules say of them alone."""
    control = {finding.rule for finding, _ in _findings(request, (), revision)}
    useless = set()
    for label in labels:
        kinds = {finding.kind for finding, _ in _findings(request, (label,), revision) if finding.rule not in control}
        if kinds & {Kind.INVALID, Kind.NO_EFFECT}:
            useless.add(label)
    return frozenset(useless)


def _findings(request: Mapping[str, Any], labels: Sequence[str], revision: Revision | None) -> list[Any]:
    return check(Subject.of(_recomputing(request, labels), revision))


def _recomputing(request: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    return {
        **request,
        "recompute_granularity": SELECTIVE,
        "recompute_modules": list(labels),
        "recompute_method": None,
        "recompute_num_layers": None,
    }


def _base(request: Mapping[str, Any]) -> list[str]:
    modules = request.get("recompute_modules")
    if request.get("recompute_granularity") != SELECTIVE or not isinstance(modules, list):
        raise UsageError(
            "study.mode=one_at_a_time changes one label of a list at a time: say the list, for example "
            "recompute_granularity=selective 'recompute_modules=[moe_act]'."
        )
    return [str(module) for module in modules]


def _with(composed: Composed, labels: Sequence[str], *, several: bool) -> Composed:
    written = f"[{','.join(labels)}]"
    words = (f"recompute_granularity={SELECTIVE}", f"recompute_modules={written}")
    return replace(
        composed,
        name=f"{composed.name} {written}" if several else written,
        overrides=(*composed.overrides, *words),
        request=_recomputing(composed.request, labels),
    )
