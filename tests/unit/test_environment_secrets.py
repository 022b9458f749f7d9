"""A secret of the environment does not come into a request by interpolation."""

from __future__ import annotations

import pytest

from orchestrator.config.compose import compose
from orchestrator.config.errors import UsageError
from orchestrator.config.secrets import secrets_of

VALUE = "hunter2hftoken"


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("trainer.environment.FOO", "trainer.environment.FOO=${oc.env:HF_TOKEN}"),
        ("study.name", "study.name=${oc.env:HF_TOKEN}"),
        ("results_dir", "results_dir=/tmp/${oc.env:HF_TOKEN}"),
        ("trainer.environment.FOO", "trainer.environment.FOO='Bearer ${oc.env:HF_TOKEN}'"),
    ],
)
def test_a_setting_that_holds_a_secret_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, setting: str, word: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", VALUE)
    with pytest.raises(UsageError, match=f"^{setting} holds the value of HF_TOKEN") as caught:
        compose([word])
    assert VALUE not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_address_of_the_database_may_hold_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD_TOKEN", VALUE)
    compose(["store.url='postgresql://me:${oc.env:PGPASSWORD_TOKEN}@host/db'"])


def test_short_values_places_and_harmless_names_are_no_secrets() -> None:
    environment = {"HF_TOKEN": "short", "HF_TOKEN_PATH": "/home/me/token", "TOKENIZER": VALUE, "X_SECRET": "/tmp"}
    assert secrets_of(environment) == {}
    assert secrets_of({"WANDB_API_KEY": VALUE}) == {VALUE: "WANDB_API_KEY"}
