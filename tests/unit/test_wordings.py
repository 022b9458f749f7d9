"""Wordings and traps: what a log in the field shows."""

from __future__ import annotations

import pytest
from wordings import CASES, Case

from orchestrator.outcome.catalogue import REMARK_RULES, RULES
from orchestrator.outcome.log import judge, read_text
from orchestrator.outcome.log.scan import line_starts
from orchestrator.outcome.rule import Rule, first_match


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_log_is_read_for_what_it_shows(case: Case) -> None:
    outcome = judge([read_text(case.text)]).outcome
    assert outcome.cause is case.cause, outcome
    if case.stage is not None:
        assert outcome.stage is case.stage, outcome
    if case.rank is not None:
        assert outcome.rank == case.rank, outcome
    assert outcome.label != "pass"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_knows_its_example_and_the_reader_finds_it(rule: Rule) -> None:
    found = first_match(RULES, rule.example)
    assert found is not None
    assert found.id == rule.id
    assert line_starts(rule.example.encode()) or rule.id.startswith("remark.")


@pytest.mark.parametrize("rule", REMARK_RULES, ids=lambda rule: rule.id)
def test_every_remark_knows_its_example(rule: Rule) -> None:
    assert rule.matches(rule.example)


def test_rules_have_ids_of_their_own() -> None:
    ids = [rule.id for rule in (*RULES, *REMARK_RULES)]
    assert len(set(ids)) == len(ids)
