"""Fills in what only the recipe knew, once it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.plan.candidate import Candidate, group
from orchestrator.plan.verdict import Verdict

RECIPE = "recipe"


def with_resolved(candidates: Sequence[Candidate], verdicts: Sequence[Verdict | None]) -> list[Candidate]:
    """The candidates with the number of ranks and the variables that their recipes turned out to need.

    The rest of what a recipe means stays `recipe`: it is applied where the trial runs, by the recipe itself.
    """
    pairs = zip(candidates, verdicts, strict=True)
    return [_filled(one, verdict.resolved) if verdict and verdict.resolved else one for one, verdict in pairs]


def _filled(candidate: Candidate, resolved: Mapping[str, Any]) -> Candidate:
    request = dict(candidate.request)
    parallelism = dict(group(request, "parallelism"))
    if parallelism.get("world_size") == RECIPE:
        request["parallelism"] = parallelism | {"world_size": group(resolved, "parallelism").get("world_size", RECIPE)}
    variables = group(resolved, "environment")
    if variables:
        trainer = dict(group(request, "trainer"))
        # What the user sets wins, as it does in Bridge (apply_environment_variables sets defaults).
        request["trainer"] = trainer | {"environment": {**variables, **(trainer.get("environment") or {})}}
    return replace(candidate, request=request)
