"""What a request is held against: which requests share a control, that control, and whether it can run. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.schema import RECOMPUTE_KEYS
from orchestrator.plan.candidate import Candidate, canonical, group, normalise
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
_OFFLOADING = "cpu_offloading"


def requested_match_key(request: Mapping[str, Any]) -> str:
    """Groups requests whose trials get deltas against one control, before any effective configuration is known.

    Recompute and offloading to the host are what candidates differ in, as in `select.match`.
    """
    rest = {key: value for key, value in normalise(request).items() if key not in RECOMPUTE_KEYS}
    rest["model"] = _kept(rest["model"])
    return hashlib.sha256(canonical(rest).encode()).hexdigest()[:16]


def control_of(candidate: Candidate) -> Candidate:
    """The control that a candidate is compared with: the same request with selective recompute of nothing.

    It does not offload either: Megatron Core takes one or the other, and a control is what both are held against.
    """
    request = {**candidate.request, **_CONTROL}
    if group(request, "model").get(_OFFLOADING) is True:
        request["model"] = _kept(group(request, "model"))
    return replace(candidate, name="control", request=request)


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
    settled = {requested_match_key(one.request) for one in accepted if one.is_control}
    for candidate in new:
        key = requested_match_key(candidate.request)
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


def _kept(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if not key.startswith(_OFFLOADING)}
