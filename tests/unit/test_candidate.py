"""What is the same configuration spelt differently, and what a trial's identity depends on."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.plan.candidate import (
    ID_DIGITS,
    Candidate,
    canonical,
    normalise,
    other_fingerprints,
    trial_config,
    trial_id,
)

REQUEST: dict[str, Any] = {
    "recompute_granularity": "selective",
    "recompute_modules": ["core_attn", "layernorm"],
    "recompute_method": None,
    "recompute_num_layers": None,
    "model": {"name": "tiny", "num_layers": 4, "hidden_size": 128, "num_attention_heads": 4},
    "parallelism": {"tp": 1, "pp": 2, "vpp": None, "cp": 1, "ep": 1, "etp": None, "layout": None, "world_size": 2},
    "precision": {"params_dtype": "fp32", "fp8": None, "fp8_recipe": None},
    "training": {"seq_length": 64, "micro_batch_size": 1, "global_batch_size": 4, "train_iters": 6},
    "trainer": {"name": "mcore_cpu", "memory_limit_gb": None, "stall_seconds": 300.0, "time_limit": None},
    "cluster": {"kind": "local", "gpu_type": None, "environment": {}, "setup": []},
    "revisions": {"bridge": None, "megatron_core": None, "worktrees": None},
    "study": {"name": "a"},
    "results_dir": "results",
}


def changed(path: str, value: Any) -> dict[str, Any]:
    request = copy.deepcopy(REQUEST)
    *groups, key = path.split(".")
    inner = request
    for name in groups:
        inner = inner.setdefault(name, {})
    inner[key] = value
    return request


def identity(request: dict[str, Any], repeat: int = 0, fingerprint: dict[str, Any] | None = None) -> str:
    return trial_id(Candidate("any", request), repeat, fingerprint)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("recompute_modules", ["layernorm", "core_attn"]),
        ("recompute_modules", ["layernorm", "core_attn", "layernorm"]),
        ("model.ffn_hidden_size", 512),
        ("model.num_query_groups", 4),
        ("model.kv_channels", 32),
        ("model.name", "another name"),
        ("parallelism.etp", 1),
        ("study.name", "b"),
        ("results_dir", "/elsewhere"),
        ("trainer.stall_seconds", 7.0),
        ("trainer.time_limit", "1:30:00"),
        ("cluster.account", "team"),
        ("cluster.partition", "gpu"),
        ("cluster.time", "4:00:00"),
        ("cluster.kind", "slurm"),
        ("cluster.gpus_per_node", 8),
        ("revisions.worktrees", "/somewhere"),
    ],
)
def test_what_cannot_change_a_result_keeps_the_identity(path: str, value: Any) -> None:
    assert identity(changed(path, value)) == identity(REQUEST)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("recompute_granularity", None),
        ("recompute_granularity", "recipe"),
        ("recompute_modules", []),
        ("recompute_modules", None),
        ("model.num_layers", 8),
        ("model.kv_channels", 16),
        ("parallelism.tp", 2),
        ("parallelism.vpp", 1),
        ("precision.params_dtype", "bf16"),
        ("training.micro_batch_size", 2),
        ("training.train_iters", 7),
        ("trainer.memory_limit_gb", 1.5),
        ("cluster.gpu_type", "h100"),
        ("cluster.environment", {"NCCL_DEBUG": "INFO"}),
        ("cluster.setup", ["module load cuda"]),
        ("cluster.container", {"image": "a.sqsh", "digest": None}),
        ("cluster.container", {"image": None, "digest": "sha256:0"}),
        ("cluster.nodes", 2),
        ("cluster.gpus_per_node", 1),
        ("revisions.megatron_core", "abc"),
    ],
)
def test_what_can_change_a_result_changes_the_identity(path: str, value: Any) -> None:
    assert identity(changed(path, value)) != identity(REQUEST)


def test_null_modules_are_core_attn_and_not_the_control() -> None:
    null, explicit, control = (identity(changed("recompute_modules", it)) for it in (None, ["core_attn"], []))
    assert null == explicit != control


def test_settings_that_a_granularity_ignores_do_not_matter() -> None:
    full = changed("recompute_granularity", "full") | {"recompute_method": "block", "recompute_num_layers": 1}
    assert identity(full) == identity(full | {"recompute_modules": None})
    off = changed("recompute_granularity", None)
    assert identity(off) == identity(off | {"recompute_modules": ["mlp"], "recompute_method": "block"})


def test_two_spellings_of_a_pipeline_layout_are_one() -> None:
    assert identity(changed("parallelism.layout", "Et*2|ttL")) == identity(changed("parallelism.layout", "Ett|t,t,L"))
    assert identity(changed("parallelism.layout", "Ett|ttL")) != identity(changed("parallelism.layout", "Et|tttL"))


def test_each_repeat_is_a_trial_of_its_own() -> None:
    assert identity(REQUEST) != identity(REQUEST, 1)


def of_recipe(name: str, **revisions: str) -> dict[str, Any]:
    return changed("model.recipe", name) | {"revisions": revisions}


def test_an_edited_recipe_is_another_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ours").mkdir()
    file = tmp_path / "ours" / "recipes.py"
    asked = of_recipe("ours.recipes.small")
    unread = identity(asked)
    file.write_text("def small(): ...\n")
    before = identity(asked)
    file.write_text("def small(): return None\n")
    assert len({unread, before, identity(asked)}) == 3
    assert identity(of_recipe("ours.recipes.small", bridge="abc")) != identity(of_recipe("ours.recipes.small"))


def test_a_pinned_bridge_says_what_its_recipes_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "megatron" / "bridge" / "recipes" / "no_such" / "small.py"
    file.parent.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "megatron.bridge.recipes.no_such.small.config"
    without = identity(of_recipe(name)), identity(of_recipe(name, bridge="abc"))
    file.write_text("def config(): ...\n")
    assert identity(of_recipe(name)) != without[0]
    assert identity(of_recipe(name, bridge="abc")) == without[1]


def test_the_shapes_of_a_folder_are_part_of_a_trial(tmp_path: Path) -> None:
    asked = changed("model.huggingface_config", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    before = identity(asked)
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    assert identity(asked) != before


@pytest.mark.parametrize("name", ["", "a", "a.b", "..", "a b.c", "/etc/passwd", "x" * 5000 + ".y", "a.\0.b"])
def test_a_recipe_that_names_no_file_is_no_error(name: str) -> None:
    assert identity(of_recipe(name))


def test_a_fingerprint_counts_only_where_nothing_is_pinned() -> None:
    first, second = identity(REQUEST, 0, {"torch": "2.7"}), identity(REQUEST, 0, {"torch": "2.8"})
    assert first != second
    assert other_fingerprints(first, [first, second, "0" * ID_DIGITS]) == [second]
    pinned = changed("revisions.megatron_core", "abc")
    assert identity(pinned, 0, {"torch": "2.7"}) == identity(pinned, 0, {"torch": "2.8"})


def test_where_software_lies_is_no_part_of_the_identity() -> None:
    here = {"megatron_core": {"version": "0.16.1", "path": "/a", "found": "git"}}
    there = {"megatron_core": {"version": "0.16.1", "path": "/b", "found": "pip"}}
    assert identity(REQUEST, 0, here) == identity(REQUEST, 0, here | {"kernel": {"version": "6.1"}})
    newer = {"megatron_core": {"version": "0.16.2", "path": "/a", "found": "git"}}
    assert identity(REQUEST, 0, here) == identity(REQUEST, 0, there) != identity(REQUEST, 0, newer)


def test_a_bridge_candidate_keeps_what_only_its_recipe_can_fill_in() -> None:
    request = changed("trainer.name", "bridge")
    assert normalise(request)["model"] == {key: value for key, value in REQUEST["model"].items() if key != "name"}


def test_ranks_are_given_the_four_settings_and_their_groups() -> None:
    config = trial_config(REQUEST)
    assert set(config) == {
        "recompute_granularity",
        "recompute_modules",
        "recompute_method",
        "recompute_num_layers",
        "model",
        "parallelism",
        "precision",
        "training",
        "trainer",
        "revisions",
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*REQUEST, "anything"]), JSON))
def test_any_request_has_an_identity_and_normalising_again_changes_nothing(request_: dict[str, Any]) -> None:
    assert len(identity(request_, 1, {"a": 1})) == ID_DIGITS
    assert canonical(normalise(request_)) == canonical(normalise(normalise(request_)))


@given(st.permutations(sorted(REQUEST)), st.permutations(sorted(REQUEST["model"])))
def test_the_order_of_settings_does_not_matter(outer: list[str], inner: list[str]) -> None:
    request = {key: REQUEST[key] for key in outer} | {"model": {key: REQUEST["model"][key] for key in inner}}
    assert identity(request) == identity(REQUEST)


def test_a_whole_float_is_its_integer() -> None:
    assert identity(changed("trainer.memory_limit_gb", 4)) == identity(changed("trainer.memory_limit_gb", 4.0))
