"""GPU-hours of studies, for a person."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.text import plain
from orchestrator.store.hours import StudyHours


def hours_lines(studies: Sequence[StudyHours]) -> list[str]:
    """One line a study that has used GPUs, or uses results that did."""
    return [
        f"GPU-hours  {plain(one.study)}  {one.spent:.3g} spent"
        + (f", {one.saved:.3g} saved against running its whole grid" if one.saved else "")
        for one in studies
    ]
