"""Findings of a diagnosis, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from orchestrator.analysis.diagnosis import Finding
from orchestrator.records.jsonfile import encode
from orchestrator.report.text import plain


def print_findings(findings: Sequence[Finding], stream: TextIO) -> None:
    """What was seen, what causes it, what to do; one block a finding."""
    for number, finding in enumerate(findings):
        if number:
            print(file=stream)
        print(f"{plain(finding.subject)}: {plain(finding.symptom)}", file=stream)
        print(f"  cause: {plain(finding.cause)}", file=stream)
        for step in finding.steps:
            print(f"  next: {plain(step.action)}", file=stream)
            if step.command:
                print(f"    {plain(step.command)}", file=stream)
        print(f"  rule: {finding.rule} ({finding.source})", file=stream)


def as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as JSON values."""
    return [encode(finding) for finding in findings]
