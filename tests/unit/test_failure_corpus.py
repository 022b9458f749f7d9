"""Public failure reports, whole tracebacks and our own logs: how often the cause and the stage are right."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.outcome.evidence import Outcome
from orchestrator.outcome.log import judge, read_text
from orchestrator.vocabulary import Cause, Stage
from orchestrator.vocabulary.causes import OOM_CAUSES

DATA = Path(__file__).parents[1] / "data"
ONLY_A_PERSON_SAYS = frozenset(
    json.loads((DATA / "failures_notes.json").read_text(encoding="utf-8"))["decided_only_by_a_persons_words"]
)
"""Cases whose deciding words stand in lines that a person wrote, and are gone once those are stripped."""
_FULL_DEVICE = OOM_CAUSES | {Cause.SHARED_GPU}


@dataclass(frozen=True)
class Case:
    id: str
    text: str
    cause: Cause
    stage: Stage
    cause_decidable: bool
    stage_decidable: bool


def cases() -> list[Case]:
    """All cases, without the lines that a person wrote around the log."""
    found = []
    for path in sorted(DATA.glob("*failures.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            given = json.loads(line)
            text = stripped(given["text"]) if given.get("has_reporter_words") else given["text"]
            only_a_person = given["id"] in ONLY_A_PERSON_SAYS
            decidable = given["decidable"]
            found.append(
                Case(
                    given["id"],
                    text,
                    Cause(given["cause"]),
                    Stage(given["stage"]),
                    decidable["cause"] and not only_a_person,
                    decidable["stage"],
                )
            )
    return found


def stripped(text: str) -> str:
    words = re.compile(r"\s*[\[(](?:title|prose|comment|report \w+)[\])]")
    return "\n".join(line for line in text.splitlines() if not words.match(line))


@pytest.fixture(scope="module")
def judged() -> list[tuple[Case, Outcome]]:
    return [(case, judge([read_text(case.text)]).outcome) for case in cases()]


def test_causes_and_stages_are_right_where_a_log_can_say_them(
    judged: list[tuple[Case, Outcome]], capsys: pytest.CaptureFixture[str]
) -> None:
    causes = [(case.cause, outcome.cause) for case, outcome in judged if case.cause_decidable]
    stages = [(case.stage, outcome.stage) for case, outcome in judged if case.stage_decidable]
    with capsys.disabled():
        print(f"\n{confusion('cause', causes)}\n\n{confusion('stage', stages)}")
    assert share(causes) >= 0.95
    assert share(stages) >= 0.90


def test_what_a_log_cannot_say_is_unknown_or_right(judged: list[tuple[Case, Outcome]]) -> None:
    for case, outcome in judged:
        if not case.cause_decidable:
            # A launcher's words, a lost connection and health are what such a remainder does show.
            assert outcome.cause in (case.cause, Cause.UNKNOWN, Cause.NONE, Cause.COMMUNICATION), case.id
        if not case.stage_decidable:
            assert outcome.stage in (case.stage, Stage.UNKNOWN), case.id


def test_no_full_device_and_no_pass_is_claimed_where_there_is_none(judged: list[tuple[Case, Outcome]]) -> None:
    for case, outcome in judged:
        assert outcome.label != "pass", case.id
        if case.cause not in _FULL_DEVICE:
            assert outcome.cause not in _FULL_DEVICE, case.id


def share(pairs: list[tuple[Cause, Cause]] | list[tuple[Stage, Stage]]) -> float:
    return sum(given is found for given, found in pairs) / len(pairs)


def confusion(name: str, pairs: list[tuple[Cause, Cause]] | list[tuple[Stage, Stage]]) -> str:
    """One line for each given word: how often it was found, and what else was."""
    lines = [f"{name}: {sum(given is found for given, found in pairs)} of {len(pairs)} right ({share(pairs):.1%})"]
    for word, total in sorted(Counter(str(given) for given, _ in pairs).items()):
        found = Counter(str(other) for given, other in pairs if str(given) == word)
        right = found.pop(word, 0)
        wrong = ", ".join(f"{other} {count}" for other, count in sorted(found.items()))
        lines.append(f"  {word:<18}{right:>3} of {total:<3}{'  taken for ' + wrong if wrong else ''}")
    return "\n".join(lines)
