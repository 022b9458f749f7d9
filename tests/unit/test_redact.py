"""Secrets do not get into anything that is written; what only looks like one does."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.redact import HIDDEN, is_secret_name, redact, redact_text

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql+psycopg://me:hunter2@db.example/x", "hunter2"),
        ("postgresql://me:p#a@s@db/x", "p#a@s"),
        ("pull hf_abcdefghijklmnopqrstuvwx now", "hf_abcdefghijklmnopqrstuvwx"),
        ("remote: ghp_0123456789abcdefghijABCDEFGHIJ", "ghp_0123456789abcdefghijABCDEFGHIJ"),
        ("key AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("Authorization: Bearer abc.def-ghi_jkl", "abc.def-ghi_jkl"),
        ("export WANDB_API_KEY=0123456789abcdef", "0123456789abcdef"),
        ("WANDB_API_KEY: '0123 456'", "0123 456"),
        ('{"HF_TOKEN": "xyz-1"}', "xyz-1"),
        ("MY_SECRET = s3cr3t", "s3cr3t"),
        ("--env DB_PASSWORD=pw1,OTHER=x", "pw1"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA\n-----END OPENSSH PRIVATE KEY-----", "b3BlbnNzaA"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "wJalrXUtnFEMI"),
        ("api_key='lower-case'", "lower-case"),
        ("password=lower", "lower"),
        ("login --password s3cr3t", "s3cr3t"),
        ("login --hf-token=s3cr3t", "s3cr3t"),
        ("run --db-password 's3 cr3t'", "s3 cr3t"),
        ("Authorization: Basic dXNlcjpwdw==", "dXNlcjpwdw"),
    ],
)
def test_a_secret_in_text_is_hidden(text: str, secret: str) -> None:
    hidden = redact_text(text)
    assert secret not in hidden
    assert HIDDEN in hidden


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:8080/a@b",
        "tokens per second: 1234",
        "num_tokens=4096, eod_token_id=0",
        "AssertionError: token dispatcher alltoall needs ep > 1",
        "ssh://git@github.com/NVIDIA/Megatron-LM",
        "secrets are hidden",
        "pretrain.py --tokenizer-type NullTokenizer --eod-token 5 --token-dispatcher alltoall",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ],
)
def test_harmless_text_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("name", ["HF_TOKEN", "api_key", "aws.secret", "db-password", "WANDB_API_KEY", "auth"])
def test_a_name_alone_says_that_its_value_is_secret(name: str) -> None:
    assert is_secret_name(name)
    assert redact({name: ["value"]}) == {name: HIDDEN}
    assert redact({name: None}) == {name: None}


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer_type",
        "moe_token_dispatcher_type",
        "calculate_per_token_loss",
        "num_tokens",
        "moe_pad_token",
        "author",
        "null_tokenizer_vocab_size",
        "secretary",
    ],
)
def test_a_setting_of_the_framework_is_no_secret(name: str) -> None:
    assert not is_secret_name(name)
    assert redact({name: "alltoall"}) == {name: "alltoall"}


def test_secrets_are_hidden_at_any_depth() -> None:
    value = {"a": [{"b": ({"password": "x"}, "https://u:p@h/")}], "n": 1}
    assert redact(value) == {"a": [{"b": [{"password": HIDDEN}, f"https://u:{HIDDEN}@h/"]}], "n": 1}


@given(_JSON)
def test_hiding_twice_is_hiding_once(value: object) -> None:
    assert redact(redact(value)) == redact(value)


@pytest.mark.parametrize(
    "piece", ["_", "A_", "a.b", " ", "TOKEN ", "KEY: ", "/", "a:", "TOKEN", "-----BEGIN PRIVATE KEY-----", "http://a:"]
)
def test_a_long_line_takes_time_in_proportion_to_its_length(piece: str) -> None:
    """A supervisor that spends seconds on a separator line is one that does not answer."""
    line = piece * (60_000 // len(piece))
    started = time.perf_counter()
    redact_text(line)
    assert time.perf_counter() - started < 2.0


def test_a_switch_is_no_secret_whatever_its_name() -> None:
    asked = {"add_extra_token_to_sequence": True, "reset_token": False, "auth_token": None, "token": "abc", "secret": 1}
    assert redact(asked) == asked | {"token": HIDDEN, "secret": HIDDEN}
