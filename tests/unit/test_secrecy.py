"""No secret is ever written."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.errors import UsageError
from orchestrator.dispatch.secrecy import refuse_secrets

TOKEN = "hf_" + "a1B2c3D4" * 4


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        ({"cluster": {"environment": {"WANDB_API_KEY": "abc"}}}, "cluster.environment.WANDB_API_KEY"),
        ({"cluster": {"setup": ["module load cuda", f"export HF_TOKEN={TOKEN}"]}}, r"cluster.setup\[1\]"),
        ({"trainer": {"overrides": {"logger.key": TOKEN}}}, "trainer.overrides.logger.key"),
        ({"cluster": {"container": {"image": "https://me:pass@registry/x"}}}, "cluster.container.image"),
    ],
)
def test_a_secret_is_refused_by_its_settings_name_and_without_its_value(request_: dict[str, Any], path: str) -> None:
    with pytest.raises(UsageError, match=path) as caught:
        refuse_secrets(request_)
    assert TOKEN not in str(caught.value)
    assert "export it in your shell" in str(caught.value)


def test_what_only_sounds_like_a_secret_is_let_through() -> None:
    refuse_secrets(
        {
            "model": {"moe_token_dispatcher_type": "alltoall"},
            "trainer": {"null_tokenizer": True, "overrides": {"tokenizer.tokenizer_type": "NullTokenizer"}},
            "cluster": {"environment": {"NCCL_DEBUG": "WARN"}, "setup": ["source /opt/env.sh"]},
            "store": {"url": "postgresql://me:pass@host/db"},
        }
    )
