"""What a set of overrides becomes, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.compose import compose, composing
from orchestrator.config.errors import UsageError
from orchestrator.config.finish import seconds
from orchestrator.config.schema import RECOMPUTE_KEYS
from orchestrator.config.typecheck import checked


@pytest.fixture(autouse=True)
def _no_conf_folder_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(*overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        compose(overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_a_tiny_mla_moe_model_without_recompute_on_this_machine() -> None:
    request = compose()
    assert request["trainer"]["name"] == "mcore_cpu"
    assert request["cluster"]["kind"] == "local"
    assert request["model"]["multi_latent_attention"] is True
    assert request["model"]["moe_layer_freq"][0] == 0
    assert [request[key] for key in RECOMPUTE_KEYS] == ["selective", [], None, None]


def test_null_modules_are_not_an_empty_list() -> None:
    assert compose(["recompute_modules=null"])["recompute_modules"] is None
    assert compose(["recompute_modules=[]"])["recompute_modules"] == []


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("control", ["selective", [], None, None]),
        ("selective", ["selective", None, None, None]),
        ("full_uniform", ["full", None, "uniform", 1]),
        ("full_block", ["full", None, "block", 1]),
        ("off", [None, None, None, None]),
    ],
)
def test_a_recompute_preset_sets_the_four_top_level_keys(preset: str, expected: list[object]) -> None:
    request = compose([f"recompute={preset}"])
    assert [request[key] for key in RECOMPUTE_KEYS] == expected


def test_with_the_bridge_trainer_every_setting_is_the_recipes() -> None:
    request = compose(["trainer=bridge"])
    assert {request[key] for key in RECOMPUTE_KEYS} == {"recipe"}
    for group in ("parallelism", "precision"):
        assert set(request[group].values()) == {"recipe"}
    assert request["model"] == {"name": "recipe"}
    assert request["training"]["seq_length"] == "recipe"


def test_a_module_list_beside_a_recipe_is_selective_recompute() -> None:
    request = compose(["trainer=bridge", "recompute_modules=[]"])
    assert [request[key] for key in RECOMPUTE_KEYS] == ["selective", [], None, None]


def test_the_word_recipe_is_refused_where_there_is_no_recipe() -> None:
    message = refused("recompute=recipe")
    assert "recompute_granularity=recipe" in message
    assert "trainer=bridge" in message


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("training.seq_lenght=3", "training.seq_length"),
        ("seq_length=3", "training.seq_length"),
        ("modle.num_layers=3", "model.num_layers"),
        ("recompute_module=[]", "recompute_modules"),
        ("model=tiny_mla", "tiny_mla_moe"),
        ("recompute_granularity=Selective", "selective"),
        ("+training.sede=1", "training.seed"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest_right_one(override: str, nearest: str) -> None:
    assert f"did you mean {nearest}?" in refused(override).replace("Did", "did")


def test_a_setting_of_another_trainer_says_whose_it_is() -> None:
    assert "only of trainer=bridge" in refused("trainer.mock_data=true")
    assert "only of cluster=here or cluster=slurm" in refused("cluster.account=x")


def test_an_unknown_word_without_likeness_lists_what_there_is() -> None:
    message = refused("model=gpt4")
    assert "tiny_dense" in message
    assert "tiny_moe" in message


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("parallelism.tp=two", "parallelism.tp must be an integer"),
        ("model.num_layers=1.5", "model.num_layers must be an integer"),
        ("strict=1", "strict must be true or false"),
        ("recompute_modules=core_attn", "Write recompute_modules=[core_attn]"),
        ("training.steady_window=[1]", "training.steady_window must be a list of 2 integers"),
        ("trainer.memory_limit_gb=-1", "above zero"),
        ("trainer.memory_limit_gb=inf", "trainer.memory_limit_gb must be a finite number"),
        ("trainer.memory_limit_gb=1e300", "64 bits"),
        ("trainer.stall_seconds=1e999", "trainer.stall_seconds must be a finite number"),
        ("trainer.learning_rate=nan", "trainer.learning_rate must be a finite number"),
        (f"trainer.time_limit={'9' * 400}m", "trainer.time_limit must be a finite number"),
        ("training.train_iters=99999999999999999999999999", "training.train_iters must be a whole number of 64 bits"),
        ("training.seed=-99999999999999999999999999", "training.seed must be a whole number of 64 bits"),
        (
            "training.steady_window=[1,99999999999999999999999999]",
            "training.steady_window[1] must be a whole number of",
        ),
        ("cluster.retries=-1", "cluster.retries must be zero or more"),
        ("study.name=' '", "study.name is empty"),
        ("trainer.time_limit=soon", "1:30:00"),
        ("results_dir=${nope}", "nope"),
        ("training.seed=[1", "Cannot read"),
        ("training.seed=1,2", "is a sweep"),
    ],
)
def test_a_value_that_no_trainer_could_take_is_refused_in_one_line(override: str, part: str) -> None:
    assert part in refused(override)


def test_text_stays_the_text_that_was_written() -> None:
    request = compose(["revisions.bridge=12e4567", "+trainer.environment.A=1e3", "trainer.environment.B=true"])
    assert request["revisions"]["bridge"] == "12e4567"
    assert request["trainer"]["environment"] == {"A": "1e3", "B": "true"}


def test_an_unquoted_comma_in_an_environment_value_is_refused_and_a_quoted_one_is_kept() -> None:
    assert "unquoted comma" in refused("trainer.environment.A=x,y")
    assert compose(['trainer.environment.A="x,y"'])["trainer"]["environment"] == {"A": "x,y"}


def test_a_setting_of_the_framework_needs_no_plus() -> None:
    assert compose(["model.kv_channels=64"])["model"]["kv_channels"] == 64


def test_a_setting_that_nobody_gave_is_not_in_the_request() -> None:
    assert "kv_channels" not in compose()["model"]


def test_the_users_folder_comes_before_the_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "tiny_moe.yaml").write_text("name: mine\nnum_layers: 2\n")
    assert compose(["model=tiny_moe"])["model"] == {"name": "mine", "num_layers": 2}
    given = tmp_path / "given"
    (given / "model").mkdir(parents=True)
    (given / "model" / "tiny_moe.yaml").write_text("name: given\n")
    assert compose(["model=tiny_moe"], config_dir="given")["model"]["name"] == "given"


def test_a_misspelt_key_in_a_users_file_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "conf" / "training").mkdir(parents=True)
    (tmp_path / "conf" / "training" / "mine.yaml").write_text("seq_lenght: 2\n")
    assert "did you mean training.seq_length?" in refused("training=mine")


@pytest.mark.parametrize(
    "content", ["seq_length: [1\n", "seq_length: [\n", "a: b: c\n", "\t- x\n", "x: 'open\n", "*no\n"]
)
def test_a_file_that_is_no_yaml_is_refused_in_one_line_that_names_it(content: str, tmp_path: Path) -> None:
    (tmp_path / "conf" / "training").mkdir(parents=True)
    (tmp_path / "conf" / "training" / "mine.yaml").write_text(content)
    message = refused("training=mine")
    assert message.count("mine.yaml") == 1
    assert "line " in message


def test_a_config_dir_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="nowhere"):
        compose([], config_dir="nowhere")


@pytest.mark.parametrize(
    ("text", "expected"), [(None, None), (90, 90), ("90", 90.0), ("90m", 5400.0), ("1.5h", 5400.0), ("1:30:00", 5400.0)]
)
def test_times_are_seconds(text: str | None, expected: float | None) -> None:
    assert seconds(text, "trainer.time_limit") == expected


def test_a_checked_request_is_left_as_it_is_by_a_second_check() -> None:
    request = compose(["study=demo", "cluster=slurm", "model.kv_channels=64"])
    assert checked(request) == request


_VALUES = st.sampled_from(
    [
        "training.seed=7",
        "recompute_modules=[]",
        "recompute_modules=[moe,mlp]",
        "recompute_modules=null",
        "model.moe_layer_freq=[0,1]",
        "model.kv_channels=8",
        "trainer.environment.A='x y'",
        "trainer.environment={A:b,C:d}",
        "study.candidates=[['recompute=off']]",
        "model=tiny_moe",
        "recompute=full_block",
        "cluster=slurm",
        "+trainer.environment.B=two",
        "results_dir=${study.name}",
    ]
)


@settings(max_examples=15, deadline=None)
@given(st.lists(_VALUES, unique_by=lambda text: text.split("=")[0], max_size=5))
def test_values_set_on_a_composed_configuration_are_what_hydra_composes(overrides: list[str]) -> None:
    from omegaconf import OmegaConf

    with composing() as composer:
        hydras = OmegaConf.to_container(composer._composed(overrides, with_hydra=False), resolve=True)
        assert composer.raw(overrides) == hydras
