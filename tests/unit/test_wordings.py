"""Wordings and traps: what a log in the field shows."""

from __future__ import annotations

import pytest
from wordings import CASES, LINES, Case

from orchestrator.outcome.catalogue import REMARK_RULES, RULES
from orchestrator.outcome.catalogue.records import RECORD_RULES
from orchestrator.outcome.frame_places import PLACES
from orchestrator.outcome.frame_rules import CONTAINERS, OUTRANKS_ALL, FrameRule
from orchestrator.outcome.frames import stage_of
from orchestrator.outcome.log import judge, read_text
from orchestrator.outcome.log.scan import line_starts
from orchestrator.outcome.rule import Rule, first_match
from orchestrator.vocabulary import Cause


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_log_is_read_for_what_it_shows(case: Case) -> None:
    outcome = judge([read_text(case.text)]).outcome
    assert outcome.cause is case.cause, outcome
    if case.stage is not None:
        assert outcome.stage is case.stage, outcome
    if case.rank is not None:
        assert outcome.rank == case.rank, outcome
    assert outcome.label != "pass"


@pytest.mark.parametrize(("cause", "text"), LINES)
def test_a_few_words_are_enough(cause: Cause, text: str) -> None:
    assert judge([read_text(text)]).outcome.cause is cause


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_knows_its_example_and_the_reader_finds_it(rule: Rule) -> None:
    found = first_match(RULES, rule.example)
    assert found is not None
    assert found.id == rule.id
    assert line_starts(rule.example.encode()) or rule.id.startswith("remark.")


@pytest.mark.parametrize("rule", REMARK_RULES, ids=lambda rule: rule.id)
def test_every_remark_knows_its_example(rule: Rule) -> None:
    assert rule.matches(rule.example)


@pytest.mark.parametrize("rule", [*OUTRANKS_ALL, *CONTAINERS, *PLACES], ids=lambda rule: rule.id)
def test_every_rule_on_frames_decides_its_example(rule: FrameRule) -> None:
    table = next(table for table in (OUTRANKS_ALL, CONTAINERS, PLACES) if rule in table)
    assert next(one.id for one in table if one.matches(rule.example)) == rule.id
    assert stage_of([rule.example]).stage is rule.stage


def test_rules_have_ids_of_their_own() -> None:
    ids = [rule.id for rule in (*RULES, *REMARK_RULES, *RECORD_RULES, *OUTRANKS_ALL, *CONTAINERS, *PLACES)]
    assert len(set(ids)) == len(ids)
