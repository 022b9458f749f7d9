"""What a comparison's lines were predicted to need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from measured_rows import early_failure, row

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.predicted import predicted

RECORDED = Path(__file__).parent.parent / "data" / "h200_recorded_moonlight16L.jsonl"
EFFECTIVE = json.loads(RECORDED.read_text().splitlines()[0])["effective"]
OFFLOADED = {"cpu_offloading": True, "cpu_offloading_num_layers": 8}


def requested(modules: list[str], granularity: str | None = "selective", **model: Any) -> dict[str, Any]:
    settings = {"recompute_granularity": granularity, "recompute_modules": modules}
    return {**settings, "model": model, "training": {}, "trainer": {"name": "bridge"}}


def test_a_line_without_a_configuration_of_its_own_offloads_as_it_asked_and_not_as_its_sibling() -> None:
    """One that failed before the framework had finished its configuration is predicted by another's."""
    off = {**EFFECTIVE, "model": {**EFFECTIVE["model"], **OFFLOADED, "recompute_granularity": None}}
    rows = [
        row([], granularity=None, effective=off, requested=requested([], None, **OFFLOADED)),
        early_failure(["moe"], requested=requested(["moe"])),
    ]
    groups = compare(rows).groups
    found = {one.line.text: one for group in groups for one in predicted(group)}
    (name,) = (text for text in found if "cpu_offloading" in text)
    assert "moves memory to the host" in (found[name].problem or "")
    assert {len(group.lines) for group in groups} == {2}, "of one match key, by what was asked"
    assert found["moe"].problem is None
    assert found["moe"].range is not None
