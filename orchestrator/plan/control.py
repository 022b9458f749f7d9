"""What a candidate is held against, and whether that can run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.plan.candidate import Candidate, offloads, without_offloading
from orchestrator.plan.finding import Finding
from orchestrator.plan.rules import check
from orchestrator.plan.subject import Subject
from orchestrator.plan.verdict import Revision

_CONTROL: dict[str, Any] = {
    "recompute_granularity": "selective",
    "recompute_modules": [],
    "recompute_method": None,
    "recompute_num_layers": None,
}


def control_of(candidate: Candidate) -> Candidate:
    """The control that a candidate is compared with: the same request with selective recompute of nothing.

    It does not offload either: Megatron Core takes one or the other, and a control is what both are held against.
    """
    request = without_offloading(candidate.request) if offloads(candidate.request) else candidate.request
    return replace(candidate, name="control", request={**request, **_CONTROL})


def refused_controls(
    new: Sequence[Candidate],
    accepted: Sequence[Candidate],
    rejected: Mapping[str, Finding],
    revision: Revision,
    *,
    strict: bool,
) -> dict[str, Finding]:
    """The match keys of `new` whose control cannot run, and what refuses it.

    Args:
        new: what is to run.
        accepted: candidates that nothing refuses, controls among them.
        rejected: by match key, what refused a control that was asked for.
        revision: whose rules judge a control that would have to be added: no verdict has judged it.
    """
    refused: dict[str, Finding] = {}
    settled = {one.match_key for one in accepted if one.is_control}
    for candidate in new:
        key = candidate.match_key
        if key in settled:
            continue
        settled.add(key)
        found = rejected.get(key) or _refusal(control_of(candidate), revision, strict=strict)
        if found is not None:
            refused[key] = found
    return refused


def _refusal(candidate: Candidate, revision: Revision, *, strict: bool) -> Finding | None:
    findings = (finding for finding, _ in check(Subject.of(candidate.request, revision)))
    return next((finding for finding in findings if finding.rejects(strict=strict)), None)
