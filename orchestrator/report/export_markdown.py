"""A comparison as Markdown, in the layout of the guide's tables."""

from __future__ import annotations

import re

from orchestrator.analysis.comparison import Comparison, Group, Line
from orchestrator.analysis.rows import ORIGIN_PUBLISHED
from orchestrator.report.compare import delta_text, footnotes, group_title
from orchestrator.report.table import ABSENT
from orchestrator.report.text import plain
from orchestrator.vocabulary.units import GB

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$])")


def markdown(comparison: Comparison) -> str:
    """One table a match key, each under a heading, with its notes as a list."""
    return "\n\n".join(_section(group) for group in comparison.groups) + "\n"


def escaped(text: object) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def code(text: object) -> str:
    """Text as code, whatever backticks or bars it holds."""
    shown = plain(text).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{padding}{shown}{padding}{fence}"


def _section(group: Group) -> str:
    all_passed = all(line.passed == len(line.runs) for line in group.lines)
    headers = ["Selective modules", "Peak allocated (GB)", "Step time (ms)", "TFLOP/s/GPU", "Allocated vs `[]`"]
    headers.append("Time vs `[]`")
    right = [False, True, True, True, True, True]
    if not all_passed:
        headers.insert(1, "Outcome")
        right.insert(1, False)
    lines = [
        f"## {escaped(group_title(group))}",
        "",
        "| " + " | ".join(headers) + " |",
        "|" + "|".join("---:" if aligned else "---" for aligned in right) + "|",
        *("| " + " | ".join(_cells(line, outcome=not all_passed)) + " |" for line in group.lines),
    ]
    notes = [f"- {escaped(note)}" for note in footnotes(group)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _cells(line: Line, *, outcome: bool) -> list[str]:
    row = line.decided
    control = "control" if line.is_control else None
    peak = line.peak.allocated if line.peak else None
    cells = [
        _modules(line),
        ABSENT if peak is None else f"{peak / GB:.3f}",
        ABSENT if line.step_ms is None else f"{line.step_ms:.2f}",
        ABSENT if line.tflops_per_gpu is None else f"{line.tflops_per_gpu:.2f}",
        escaped(control or delta_text(line.peak_delta)) if control is None else control,
        escaped(control or delta_text(line.time_delta)) if control is None else control,
    ]
    if outcome:
        said = row.outcome_text or line.label
        counted = f" ({line.passed} of {len(line.runs)} passed)" if len(line.runs) > 1 else ""
        cells.insert(1, escaped(f"{said or 'no outcome'}{counted}"))
    return cells


def _modules(line: Line) -> str:
    """`a`, `b` as in the guide: each label is code."""
    modules = line.candidate.recompute.modules
    if line.runs[0].origin == ORIGIN_PUBLISHED or not modules:
        return code(line.text) if not modules else ", ".join(code(part) for part in line.text.split(", "))
    return ", ".join(code(label) for label in modules)
