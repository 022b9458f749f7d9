"""What `show` sets side by side."""

from __future__ import annotations

import pytest

from orchestrator.report.trial import NOT_STATED, recording, setting_rows
from orchestrator.store.detail import RankSummary


def test_recompute_settings_are_always_shown_and_of_the_rest_what_became_another() -> None:
    requested = {
        "recompute_granularity": "selective",
        "recompute_modules": None,
        "model": {"num_layers": 4, "activation_func": "silu", "kv_channels": None, "unknown": 1},
        "parallelism": {"tp": 2, "pp": 1},
        "precision": {"params_dtype": "bf16"},
    }
    effective = {
        "model": {
            "recompute_granularity": "selective",
            "recompute_modules": ["core_attn"],
            "num_layers": 8,
            "activation_func": "torch.nn.functional.silu",
            "kv_channels": 64,
            "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
        },
        "optimizer": {"params_dtype": "torch.bfloat16"},
    }
    assert setting_rows(requested, effective) == [
        ("recompute_granularity", "selective", "selective", False),
        ("recompute_modules", None, ["core_attn"], True),
        ("model.num_layers", 4, 8, True),
        ("parallelism.tp", 2, 1, True),
    ]


def test_setting_with_two_values_is_not_guessed() -> None:
    rows = setting_rows(
        {"recompute_method": "block"}, {"a": {"recompute_method": "block"}, "b": {"recompute_method": 1}}
    )
    assert rows == [("recompute_method", "block", NOT_STATED, False)]
    assert setting_rows({"recompute_method": "block"}, None) == [("recompute_method", "block", NOT_STATED, False)]


def summary(rank: int, share: float | None, paused: bool = False) -> RankSummary:
    return RankSummary(
        rank, "h", "exit", 0, None, None, 20, None, None, None, None, None, None, None, share, recording_paused=paused
    )


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([summary(0, 0.00096)], ["recorded by stage, at 0.10% of the steady step"]),
        ([summary(0, None)], []),
        (
            [summary(0, 0.0029, True), summary(1, 0.0022, True)],
            ["recorded by stage, at 0.29% of the steady step (rank 0); paused in the steady window on ranks 0, 1"],
        ),
    ],
)
def test_show_says_what_recording_cost_and_where_it_paused(ranks: list[RankSummary], said: list[str]) -> None:
    assert list(recording(ranks)) == said
