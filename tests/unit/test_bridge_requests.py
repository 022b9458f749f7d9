"""What a request becomes for Megatron Bridge, as far as that can be said without it."""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import pytest

from orchestrator.trial.bridge.effective import built_layers
from orchestrator.trial.bridge.gpu import NoGpuError, parse_clocks, take
from orchestrator.trial.bridge.recipe import RecipeError, _folder_of, requested_overrides, world_size_of
from orchestrator.trial.bridge.trainer import loss_of, optimizer_has_state


@dataclasses.dataclass
class Dataset:
    sequence_length: int = 8192


def container(**model: Any) -> Any:
    return types.SimpleNamespace(model=types.SimpleNamespace(**model), dataset=Dataset())


def request(**changes: Any) -> dict[str, Any]:
    return {"model": {"name": "m", "recipe": "a.b"}, "parallelism": {}, "precision": {}, "training": {}} | changes


def test_what_is_left_to_the_recipe_is_not_touched() -> None:
    asked = request(
        recompute_modules="recipe",
        model={"name": "m", "recipe": "a.b", "num_layers": "recipe"},
        parallelism={"tp": "recipe"},
        training={"seq_length": "recipe"},
    )
    assert requested_overrides(container(), asked) == {}


def test_null_and_the_empty_list_are_two_things() -> None:
    assert requested_overrides(container(), request(recompute_modules=None)) == {"model.recompute_modules": None}
    assert requested_overrides(container(), request(recompute_modules=[])) == {"model.recompute_modules": []}


def test_one_sequence_length_sets_model_and_data_alike() -> None:
    found = requested_overrides(container(), request(training={"seq_length": 4096}))
    assert found == {"model.seq_length": 4096, "dataset.sequence_length": 4096}


def test_settings_land_on_bridges_own_paths() -> None:
    found = requested_overrides(
        container(),
        request(parallelism={"tp": 2, "ep": 8, "vpp": None}, training={"global_batch_size": 4, "seed": 7}),
    )
    assert found == {
        "model.tensor_model_parallel_size": 2,
        "model.expert_model_parallel_size": 8,
        "model.virtual_pipeline_model_parallel_size": None,
        "train.global_batch_size": 4,
        "rng.seed": 7,
    }


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [((2, 1, 1, 8, 1), 8), ((4, 4, 2, 1, None), 32), ((1, 1, 1, 1, 1), 1), ((2, 2, 1, 3, 1), 12)],
)
def test_the_fewest_ranks_hold_a_whole_number_of_dense_and_expert_groups(sizes: tuple[Any, ...], ranks: int) -> None:
    names = ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
    model = {f"{name}_parallel_size": size for name, size in zip(names, sizes, strict=True)}
    assert world_size_of(container(**model)) == ranks


def test_shapes_come_from_the_request_or_from_a_folder(tmp_path: Path) -> None:
    written = _folder_of({"hidden_size": 64}, tmp_path)
    assert json.loads((written / "config.json").read_text()) == {"hidden_size": 64}
    assert _folder_of(str(tmp_path), tmp_path / "elsewhere") == tmp_path
    with pytest.raises(RecipeError, match=r"no config\.json"):
        _folder_of(str(tmp_path / "nowhere"), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RecipeError, match="is not JSON"):
        _folder_of(str(tmp_path), tmp_path)


def test_clocks_and_throttle_reasons_are_read_from_nvidia_smi() -> None:
    found = parse_clocks("1980, 3201, 1980, 3201, 39, 468.59, 0x0000000000000044, 580.159.04\n")
    assert found["clocks"]["sm_mhz"] == 1980.0
    assert found["clocks"]["power_w"] == 468.59
    assert found["throttle_reasons"] == ["sw_power_cap", "hw_thermal_slowdown"]
    assert found["driver"] == "580.159.04"


def test_what_nvidia_smi_does_not_know_is_absent() -> None:
    found = parse_clocks("[N/A], 3201, 1980, 3201, 39, [Not Supported], [N/A], 580.1\n")
    assert "sm_mhz" not in found["clocks"]
    assert "power_w" not in found["clocks"]
    assert parse_clocks("No devices were found\n") == {}


def test_the_language_model_loss_is_taken_among_others() -> None:
    assert loss_of({"seq_load_balancing_loss": 1.0, "lm loss": 10.8}) == 10.8
    assert loss_of({}) is None
    assert loss_of(None) is None


def test_an_optimizer_of_optimizers_has_state_when_one_of_them_has() -> None:
    empty = types.SimpleNamespace(optimizer=types.SimpleNamespace(state={}))
    filled = types.SimpleNamespace(optimizer=types.SimpleNamespace(state={"p": {"exp_avg": 1}}))
    assert not optimizer_has_state(types.SimpleNamespace(chained_optimizers=[empty]))
    assert optimizer_has_state(types.SimpleNamespace(chained_optimizers=[empty, filled]))


def test_layers_are_listed_by_kind_with_what_was_built() -> None:
    class Attention:
        core_attention = Dataset()

    class TransformerLayer:
        layer_number = 1
        self_attention = Attention()
        mlp = Dataset()

    class MoELayer:
        layer_number = 1

    class Chunk:
        def modules(self) -> list[Any]:
            return [TransformerLayer(), MoELayer(), TransformerLayer()]

    (kind,) = built_layers([Chunk()])
    assert kind["count"] == 2
    assert (kind["self_attention"], kind["core_attention"], kind["mlp"]) == ("Attention", "Dataset", "Dataset")


@pytest.mark.parametrize(
    ("available", "count", "cuda", "rank", "said"),
    [
        (False, 0, None, 0, "built without CUDA: install one with. trainer=mcore_cpu needs none"),
        (False, 0, "13.0", 0, "No CUDA GPUs are available to torch .*: does nvidia-smi show them on this node"),
        (
            True,
            1,
            "13.0",
            1,
            r"local rank 1 has no GPU: this node shows 1 \(CUDA_VISIBLE_DEVICES=3\); ask for one a rank",
        ),
    ],
)
def test_a_rank_without_a_gpu_says_so(
    monkeypatch: pytest.MonkeyPatch, available: bool, count: int, cuda: str | None, rank: int, said: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(NoGpuError, match=said):
        take(rank)
