"""A candidate that is measurably faster than the control: no effect of recompute, which only adds work."""

from __future__ import annotations

from orchestrator.analysis.comparison import Group, Line
from orchestrator.analysis.rows import ORIGIN_PUBLISHED

_LEAST = 0.005
"""A smaller share of the control's step is not worth a warning."""


def too_fast(group: Group, line: Line) -> str:
    """What is wrong with the time of a line, as a sentence; empty where nothing is.

    Nothing is said where the control's allocator had to retry: what saves memory can then save time.
    """
    delta, control = line.time_delta, group.control
    if delta is None or control is None or line.is_control or not delta.measurable or delta.fraction > -_LEAST:
        return ""
    if group.first_row.origin == ORIGIN_PUBLISHED or any(row.allocator_retries for row in control.runs):
        return ""
    return (
        f"{line.text} is {-delta.fraction:.2%} faster than recomputing nothing: recompute cannot save time, so the "
        "runs differ in something else (load, clocks, a first run). Repeat both before you rely on it."
    )
