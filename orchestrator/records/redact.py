"""Removes secrets before anything is written."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "<redacted>"

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:api[_\-]?key|access[_\-]?key|secret|token|passw(?:or)?d|passwd|credentials?|private[_\-]?key|auth)"
    r"(?:$|[_\-.])",
    re.IGNORECASE,
)
_HARMLESS_NAMES = re.compile(
    r"(?:tokenizer|num_tokens|tokens_per|token_dispatcher|per_token|eod_token|pad_token)", re.IGNORECASE
)
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s,;\"']+)"
_SECRET_TEXT = (
    (re.compile(r"(\b[a-z][a-z0-9+.\-]{0,30}://[^/\s:@]*):[^/\s]+@", re.IGNORECASE), r"\1:" + HIDDEN + "@"),
    (
        re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[A-Za-z0-9_\-]{16,})"),
        HIDDEN,
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bnvapi-[A-Za-z0-9_\-]{16,}|\bglpat-[A-Za-z0-9_\-]{16,}"), HIDDEN),
    (re.compile(r"(\bBearer\s+)[A-Za-z0-9._~+/\-]{8,}=*", re.IGNORECASE), r"\1" + HIDDEN),
    (re.compile(r"(\bAuthorization[\"']?\s*[=:]\s*[\"']?Basic\s+)[A-Za-z0-9+/]+=*", re.IGNORECASE), r"\1" + HIDDEN),
    (
        # An option on a command line. `--eod-token 5` and `--tokenizer-type X` are none.
        re.compile(
            r"(--(?:[\w-]+-)?(?:password|passwd|secret|api-?key)[= ]\s*|--(?:(?:hf|auth|access|api)-)?token[= ]\s*)"
            + _VALUE,
            re.IGNORECASE,
        ),
        r"\1" + HIDDEN,
    ),
    (
        # A variable: in capitals, where the name itself says it.
        re.compile(r"((?:API_?KEY|ACCESS_?KEY|SECRET|TOKEN|PASSWORD|PASSWD)[\"']?\s*[=:]\s*)" + _VALUE),
        r"\1" + HIDDEN,
    ),
    (
        # A setting in small letters: only names that mean nothing else, since a log is full of tokens.
        re.compile(
            r"((?:api_?key|access_?key|secret_?key|client_?secret|auth_?token|access_?token|hf_?token"
            r"|password|passwd)[\"']?\s*[=:]\s*)" + _VALUE,
            re.IGNORECASE,
        ),
        r"\1" + HIDDEN,
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or setting of this name holds a secret by its name alone."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAMES.search(name)


def redact_text(text: str) -> str:
    """The text without passwords in URLs, access tokens, and values assigned to secret names."""
    for pattern, replacement in _SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text


def redact(value: Any) -> Any:
    """A JSON value whose secret fields and strings are hidden, at any depth."""
    if isinstance(value, dict):
        return {
            # Whether to add a token to something is no secret.
            key: HIDDEN if not isinstance(item, bool | None) and is_secret_name(str(key)) else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return redact_text(value)
    return value
