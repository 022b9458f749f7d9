"""What changed between two revisions: the effect of a recompute setting against its control, then and now. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.candidates import candidate_of
from orchestrator.analysis.match import match_key
from orchestrator.analysis.rows import Row
from orchestrator.select.match import MatchKey, digest, flatten

_REVISION_NAMES = ("commit", "version", "revision", "tag", "digest", "tree")


_Pair = tuple[Row, Row]
"""A run and the control of its own job."""


@dataclass(frozen=True)
class Effect:
    """What a setting did against the control of its own job, at one revision: medians over jobs."""

    jobs: int
    peak_bytes: float | None
    """Change of the peak, in bytes; negative saves memory."""
    step_fraction: float | None
    """Change of the step time, as a fraction of the control's."""


@dataclass(frozen=True)
class Regression:
    """One setting under one key apart from the revision, before and after."""

    key: str
    setting: str
    before: Effect
    after: Effect

    @property
    def peak_change(self) -> float | None:
        """Change of the change, in bytes: positive means that it saves less than it did."""
        return _difference(self.before.peak_bytes, self.after.peak_bytes)

    @property
    def step_change(self) -> float | None:
        """Change of the change, as a fraction of the control's step: positive means that it costs more."""
        return _difference(self.before.step_fraction, self.after.step_fraction)


def packages_at(software: Mapping[str, Any], revision: str) -> frozenset[str]:
    """The packages of a software set whose commit, version or digest begins with `revision`."""
    found = set()
    for path, value in flatten(software).items():
        names = path.split(".")
        if isinstance(value, str) and names[-1] in (*_REVISION_NAMES, names[0]) and value.startswith(revision):
            found.add(names[0])
    return frozenset(found)


def regressions(rows: Sequence[Row], before: str, after: str) -> list[Regression]:
    """Pairs of one key apart from the packages that carry the two revisions, those that got worse first.

    Rows that did not pass, and those without a passing control in their own job, have no effect to compare.
    """
    moved = frozenset().union(*(packages_at(row.software, rev) for row in rows for rev in (before, after)))
    keys = {id(row): match_key(row) for row in rows}
    controls = _controls(rows, keys)
    effects: dict[tuple[str, str], tuple[list[_Pair], list[_Pair]]] = {}
    for row in rows:
        setting = candidate_of(row).recompute
        control = controls.get((row.batch, keys[id(row)].digest))
        if not row.passed or setting.is_control or control is None:
            continue
        pairs = effects.setdefault((_key(keys[id(row)], moved), setting.text), ([], []))
        for pair, revision in zip(pairs, (before, after), strict=True):
            if packages_at(row.software, revision):
                pair.append((row, control))
    found = [
        Regression(key, setting, _effect(pairs[0]), _effect(pairs[1]))
        for (key, setting), pairs in effects.items()
        if pairs[0] and pairs[1]
    ]
    return sorted(found, key=lambda one: (-(one.peak_change or 0.0), -(one.step_change or 0.0), one.setting, one.key))


def _controls(rows: Sequence[Row], keys: Mapping[int, MatchKey]) -> dict[tuple[str | None, str], Row]:
    """The passing control of each job and key; the opening one before the closing one."""
    found: dict[tuple[str | None, str], Row] = {}
    for row in sorted(rows, key=lambda row: (row.started_at or 0.0, row.attempt or "")):
        if row.batch is not None and row.passed and candidate_of(row).recompute.is_control:
            found.setdefault((row.batch, keys[id(row)].digest), row)
    return found


def _key(key: MatchKey, moved: frozenset[str]) -> str:
    left_out = tuple(f"software.{package}" for package in moved)
    fields = {
        name: value
        for name, value in key.fields.items()
        if not any(name == one or name.startswith(one + ".") for one in left_out)
    }
    return digest(fields)


def _effect(pairs: Sequence[_Pair]) -> Effect:
    peaks = [
        row.peak.allocated - control.peak.allocated
        for row, control in pairs
        if row.peak and control.peak and row.peak.allocated is not None and control.peak.allocated is not None
    ]
    steps = [row.step_ms / control.step_ms - 1 for row, control in pairs if row.step_ms and control.step_ms]
    return Effect(
        jobs=len({row.batch for row, _ in pairs}),
        peak_bytes=statistics.median(peaks) if peaks else None,
        step_fraction=statistics.median(steps) if steps else None,
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
