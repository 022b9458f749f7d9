"""Every field that a rule reads is a setting that a user can write, and a misspelt one is answered with its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.compose import Composer, composing
from orchestrator.config.errors import UsageError
from orchestrator.config.typecheck import nearest_setting, type_at
from orchestrator.plan.fields import FIELDS, spelling
from orchestrator.plan.subject import Subject

SAMPLES: dict[type, tuple[str, Any]] = {
    int: ("3", 3),
    float: ("0.5", 0.5),
    str: ("auto", "auto"),
    bool: ("true", True),
    list: ("[]", []),
    type(None): ("null", None),
}
MODEL_FIELDS = [name for name in FIELDS if spelling(name).startswith("model.")]
NO_NULL = {"attention_backend"}
"""Fields that are null only where a recipe leaves them so."""


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with composing(working_dir=Path("/")) as opened:
        yield opened


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_that_a_rule_reads_is_a_setting(name: str) -> None:
    assert type_at(spelling(name)) is not None


@pytest.mark.parametrize("name", MODEL_FIELDS)
def test_a_model_field_can_be_set_to_every_type_that_a_rule_reads(composer: Composer, name: str) -> None:
    for kind in FIELDS[name].types:
        written, value = SAMPLES[kind]
        if kind is type(None) and name in NO_NULL:
            continue
        request = composer.compose([f"model.{name}={written}"])
        assert request["model"][name] == value
        assert Subject.of(request)[name] == value


@pytest.mark.parametrize("name", FIELDS)
def test_a_misspelt_field_is_answered_with_the_right_name(composer: Composer, name: str) -> None:
    right = spelling(name)
    group, _, last = right.rpartition(".")
    if len(last) < 4:  # tp, pp, cp: any other letter is another setting
        return
    wrong = f"{group}.{last[:-2]}{last[-1]}{last[-2]}".lstrip(".")
    if type_at(wrong) is not None:
        wrong += "x"
    assert nearest_setting(wrong) == right
    with pytest.raises(UsageError, match=f"did you mean {right}"):
        composer.compose([f"{wrong}=1"])
