"""Rows of one match key by candidate: a candidate's repeats are one line of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.foreign import as_text
from orchestrator.analysis.recompute import Recompute, effective_recompute, requested_recompute
from orchestrator.analysis.rows import Row
from orchestrator.select.match import flatten
from orchestrator.vocabulary import is_result


@dataclass(frozen=True)
class Candidate:
    """What sets a line of a comparison apart within its match key."""

    recompute: Recompute
    offloading: tuple[tuple[str, Any], ...] = ()
    """The cpu_offloading settings that are on: the other fields that a match key leaves out."""

    @property
    def is_control(self) -> bool:
        return self.recompute.is_control and not self.offloading

    @property
    def text(self) -> str:
        """What a person calls it."""
        if not self.offloading:
            return self.recompute.text
        settings = ", ".join(f"{name}={value}" for name, value in self.offloading)
        return f"{self.recompute.text} + {settings}"


def candidate_of(row: Row) -> Candidate:
    """The candidate that a row measured: as the framework took it, or as requested where it ended before."""
    flat = flatten(row.effective) if row.effective is not None else {}
    effective = effective_recompute(flat)
    settings = flat if effective is not None else flatten(row.requested)
    return Candidate((effective or requested_recompute(row.requested)).normal(), _offloading(settings))


def rewritten(row: Row) -> str | None:
    """How the framework changed the request, where it did: an unset list becomes `core_attn`, an override is lost."""
    if row.effective is None:
        return None
    requested = requested_recompute(row.requested)
    effective = effective_recompute(flatten(row.effective))
    if effective is None or requested.follows_recipe:
        return None
    unset = requested.granularity == "selective" and requested.modules is None
    if effective.normal() == requested.normal() and not unset:
        return None
    return f"asked for {requested.text}, ran {effective.text}"


def runs_by_candidate(rows: Sequence[Row]) -> dict[Candidate, list[Row]]:
    """The runs that count, by candidate: every run of a job's controls, and of any other trial its last result."""
    chosen: dict[Candidate, list[Row]] = {}
    trials: dict[str, list[Row]] = {}
    for row in rows:
        if row.is_control_run:
            chosen.setdefault(candidate_of(row), []).append(row)
        else:
            trials.setdefault(row.trial, []).append(row)
    for attempts in trials.values():
        latest = max(attempts, key=_standing)
        chosen.setdefault(candidate_of(latest), []).append(latest)
    for runs in chosen.values():
        finished = [row for row in runs if row.label is not None and is_result(row.label)]
        if finished and any(row.is_control_run for row in runs):
            runs[:] = [row for row in runs if not row.is_control_run or row in finished]
        runs.sort(key=_order)
    return chosen


def _standing(row: Row) -> tuple[bool, str]:
    return (row.label is not None and is_result(row.label), row.attempt or "")


def _order(row: Row) -> tuple[int, float, str, str]:
    return (row.repeat, row.started_at or 0.0, row.trial, row.attempt or "")


def _offloading(flat: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    found = {
        path.rpartition(".")[2]: value if isinstance(value, (str, int, float, type(None))) else as_text(value)
        for path, value in flat.items()
        if path.rpartition(".")[2].startswith("cpu_offloading")
    }
    return tuple(sorted(found.items())) if found.get("cpu_offloading") else ()
