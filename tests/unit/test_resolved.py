"""What a recipe turned out to mean, filled into what was asked."""

from __future__ import annotations

from typing import Any

from orchestrator.plan.candidate import Candidate
from orchestrator.plan.resolved import with_resolved
from orchestrator.plan.verdict import Verdict

MEANS = {
    "parallelism": {"tp": 2, "ep": 8, "world_size": 8},
    "environment": {"NVTE_FUSED_ATTN": "1", "SEED": "recipe's"},
}


def asked(world_size: Any, **trainer: Any) -> Candidate:
    request = {"parallelism": {"tp": "recipe", "world_size": world_size}, "trainer": {"name": "bridge", **trainer}}
    return Candidate("[]", request)


def filled(candidate: Candidate, verdict: Verdict | None) -> dict[str, Any]:
    (one,) = with_resolved([candidate], [verdict])
    return dict(one.request)


def test_the_recipe_says_how_many_ranks_it_needs() -> None:
    found = filled(asked("recipe"), Verdict(ok=True, resolved=MEANS))
    assert found["parallelism"] == {"tp": "recipe", "world_size": 8}


def test_a_world_size_that_was_asked_for_stays() -> None:
    assert filled(asked(16), Verdict(ok=True, resolved=MEANS))["parallelism"]["world_size"] == 16


def test_the_recipes_variables_are_set_unless_the_user_sets_them() -> None:
    found = filled(asked(8, environment={"SEED": "mine"}), Verdict(ok=True, resolved=MEANS))
    assert found["trainer"]["environment"] == {"NVTE_FUSED_ATTN": "1", "SEED": "mine"}


def test_without_an_answer_nothing_changes() -> None:
    candidate = asked("recipe")
    assert filled(candidate, None) == candidate.request
    assert filled(candidate, Verdict(ok=True)) == candidate.request
