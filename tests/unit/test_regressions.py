"""How the effect of a setting changed between two revisions."""

from __future__ import annotations

from typing import Any

import pytest
from measured_rows import row

from orchestrator.analysis.regressions import packages_at, regressions
from orchestrator.analysis.rows import Row

OLD, NEW = "a1" * 20, "b2" * 20


def at(commit: str, modules: list[str], *, batch: str, peak: int, step_ms: float, **changes: Any) -> Row:
    software = {"torch": {"version": "2.13"}, "megatron_core": {"version": "0.16", "commit": commit}}
    return row(modules, batch=batch, software=software, peak=peak, step_ms=step_ms, **changes)


def study(**changes: Any) -> list[Row]:
    """`moe_act` saves 30 % less and costs 5 % of a step more at the new revision."""
    return [
        at(OLD, [], batch="old", peak=1000, step_ms=100.0),
        at(OLD, ["moe_act"], batch="old", peak=800, step_ms=110.0),
        at(NEW, [], batch="new", peak=1100, step_ms=200.0),
        at(NEW, ["moe_act"], **{"batch": "new", "peak": 960, "step_ms": 230.0} | changes),
    ]


def test_change_of_the_change_is_against_each_revisions_own_control() -> None:
    (found,) = regressions(study(), OLD[:7], NEW[:7])
    assert found.setting == "moe_act"
    assert (found.before.peak_bytes, found.after.peak_bytes, found.peak_change) == (-200, -140, 60)
    assert found.step_change == pytest.approx(0.05)


def test_rows_that_differ_in_more_than_the_revision_are_not_compared() -> None:
    assert regressions(study(world_size=4), OLD, NEW) == []
    assert regressions(study(device_name="another"), OLD, NEW) == []


def test_row_that_failed_or_has_no_control_in_its_job_has_no_effect() -> None:
    assert regressions(study(label="OOM-fwd"), OLD, NEW) == []
    assert regressions(study(batch="elsewhere"), OLD, NEW) == []


def test_worst_comes_first() -> None:
    rows = [
        *study(),
        at(OLD, ["mlp"], batch="old", peak=900, step_ms=100.0),
        at(NEW, ["mlp"], batch="new", peak=1200, step_ms=200.0),
    ]
    assert [one.setting for one in regressions(rows, OLD, NEW)] == ["mlp", "moe_act"]
    assert regressions(list(reversed(rows)), OLD, NEW) == regressions(rows, OLD, NEW)


def test_revision_is_found_by_commit_or_version_of_any_package() -> None:
    software = {"megatron_core": {"version": "0.16.1", "commit": OLD, "path": "0.16/x"}, "torch": "2.13.0"}
    assert packages_at(software, OLD[:5]) == {"megatron_core"}
    assert packages_at(software, "2.13") == {"torch"}
    assert packages_at(software, "0.16/") == frozenset()
