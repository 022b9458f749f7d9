"""What `show` sets side by side."""

from __future__ import annotations

from orchestrator.report.trial import NOT_STATED, setting_rows


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
