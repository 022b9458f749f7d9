"""Which candidates a grid has, and which grids are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.compose import Composer, composing
from orchestrator.config.errors import UsageError
from orchestrator.config.multirun import Composed, axis_points, expand
from orchestrator.config.names import names_of
from orchestrator.config.overrides import parsed


@pytest.fixture(autouse=True)
def _no_conf_folder_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def grid(*overrides: str, multirun: bool = True) -> list[Composed]:
    with composing() as composer:
        return expand(overrides, composer, multirun)


def refused(*overrides: str, multirun: bool = True) -> str:
    with pytest.raises(UsageError) as caught:
        grid(*overrides, multirun=multirun)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_lists_of_modules_are_swept_as_lists() -> None:
    found = grid("recompute_modules=[],[core_attn],[layernorm,moe_act]")
    assert [candidate.request["recompute_modules"] for candidate in found] == [
        [],
        ["core_attn"],
        ["layernorm", "moe_act"],
    ]
    assert [candidate.name for candidate in found] == ["[]", "[core_attn]", "[layernorm,moe_act]"]


def test_candidates_multiply_with_the_axes() -> None:
    found = grid(
        'study.candidates=[["recompute=control"],["recompute=full_uniform","recompute_num_layers=2"]]',
        "parallelism=two_stages,two_replicas",
    )
    assert [candidate.name for candidate in found] == [
        "parallelism=two_stages []",
        "parallelism=two_stages full uniform 2",
        "parallelism=two_replicas []",
        "parallelism=two_replicas full uniform 2",
    ]


def test_a_declared_study_needs_no_multirun_flag() -> None:
    found = grid("study=demo", multirun=False)
    assert len(found) >= 6
    assert found[0].name == "[]"
    assert {candidate.request["parallelism"]["world_size"] for candidate in found} == {2}


def test_ranges_and_globs_are_swept() -> None:
    assert [candidate.name for candidate in grid("training.seed=range(1,4)")] == ["seed=1 []", "seed=2 []", "seed=3 []"]
    found = grid("model=glob(tiny_*,exclude=[*mla*,*ladder])")
    assert [candidate.request["model"]["name"] for candidate in found] == ["tiny_dense", "tiny_moe"]


def test_a_file_may_declare_axes_as_hydras_own_sweeper_reads_them(tmp_path: Path) -> None:
    (tmp_path / "conf" / "study").mkdir(parents=True)
    (tmp_path / "conf" / "study" / "mine.yaml").write_text("name: mine\n")
    text = "defaults: [config, _self_]\nhydra: {sweeper: {params: {training.seed: '1,2'}}}\n"
    (tmp_path / "conf" / "mine.yaml").write_text(text)
    with composing(config_name="mine") as composer:
        assert len(expand([], composer, multirun=True)) == 2
        assert len(expand([], composer, multirun=False)) == 1


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["training.seed=range(1,1)"], "the grid is empty"),
        (["training.seed=range(1,3,0)"], "zero"),
        (["training.seed=range(1,1000000)"], "20000 is the most"),
        (["recompute_modules=[],[mlp]", "study.repeats=1000000000"], "are 2000000000 trials; 20000 is the most"),
        (["training.seed=interval(1,2)"], "use range(start,stop,step)"),
        (["model=glob(nothing*)"], "matches nothing"),
        (["trainer.environment.A=x,y"], "unquoted comma"),
        (['study.candidates=[["recompute_modules=[],[moe]"]]'], "a sweep inside a sweep"),
        (["study=demo", "recompute_modules=[]"], "on the command line"),
        (["training.seed=1,2", "training.seed=3"], "one of them would be lost"),
        (["training.seed=1", "++training.seed=2,3"], "one of them would be lost"),
        (["study=demo,default"], "one for the whole command"),
        (["cluster=local,slurm"], "one for the whole command"),
        (['study.candidates=[["results_dir=x"]]'], "one for the whole command"),
        (['study.candidates=[["recompute_modul=[]"]]'], "did you mean recompute_modules?"),
        (['study.candidates=[["parallelism.tp=x"]]'], "study.candidates[1]: parallelism.tp must be"),
        (["study.candidates=['recompute=off']"], "study.candidates[0] must be a list"),
        (["hydra/launcher=submitit_slurm"], "would have no effect"),
        (["recompute_modules=core_attn,moe"], "Write recompute_modules=[core_attn]"),
    ],
)
def test_what_would_silently_do_something_else_is_refused(overrides: list[str], part: str) -> None:
    assert part in refused(*overrides)


def test_a_sweep_without_the_multirun_flag_is_refused() -> None:
    assert "add -m" in refused("training.seed=1,2", multirun=False)


_AXIS = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=3).map(lambda values: ",".join(map(str, values))),
    st.lists(
        st.sampled_from(["[]", "[moe]", "[a,b]", "null", "'x,y'", '"q"', "choice", "1.5"]), min_size=1, max_size=3
    ).map(",".join),
    st.tuples(st.integers(0, 5), st.integers(6, 9)).map(lambda pair: f"range({pair[0]},{pair[1]},2)"),
    st.sampled_from(["choice(1,2)", "range(0.5,2)", "sort(3,1,2)", "{a:1}", "${study.name}"]),
)
_KEYS = ["training.seed", "recompute_modules", "++model.kv_channels", "+trainer.environment.A", "parallelism.layout"]


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with composing() as opened:
        yield opened


@settings(max_examples=100, deadline=None)
@given(axes=st.lists(st.tuples(st.sampled_from(_KEYS), _AXIS), unique_by=lambda pair: pair[0], max_size=4))
def test_a_grid_has_the_points_and_the_order_of_hydras_own_sweeper(
    composer: Composer, axes: list[tuple[str, str]]
) -> None:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    words = [f"{key}={value}" for key, value in axes if not (key.startswith("+t") and "," in value)]
    overrides = parsed(words, composer.loader)
    (hydras,) = BasicSweeper.split_arguments(overrides, None)
    assert [list(point.overrides) for point in axis_points(overrides)] == hydras


_REQUEST = st.fixed_dictionaries(
    {
        "recompute_granularity": st.sampled_from(["selective", "full", None, "recipe"]),
        "recompute_modules": st.sampled_from([None, "recipe", [], ["moe"], ["moe", "mlp"]]),
        "recompute_method": st.sampled_from([None, "uniform", "block", "recipe"]),
        "recompute_num_layers": st.sampled_from([None, 1, 2, "recipe"]),
        "training": st.fixed_dictionaries({"seed": st.integers(0, 2)}),
    }
)
_SETTINGS = st.dictionaries(
    st.sampled_from(["training.seed", "other.seed", "model", "recompute"]), st.sampled_from("123")
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_SETTINGS, _REQUEST), max_size=8))
def test_no_two_candidates_of_a_study_share_a_name(points: list[tuple[dict[str, str], dict[str, object]]]) -> None:
    names = names_of([settings for settings, _ in points], [request for _, request in points])
    assert len(set(names)) == len(points)
    assert all(name.strip() for name in names)


def test_names_that_would_be_alike_say_where_the_requests_differ() -> None:
    found = grid('study.candidates=[["training.seed=1"],["training.seed=2","recompute=off"]]')
    assert [candidate.name for candidate in found] == ["seed=1 []", "seed=2 off"]
    twice = grid("training.seed=5,5")
    assert [candidate.name for candidate in twice] == ["[]", "[] (2)"]


def test_two_axes_of_the_same_last_word_are_told_apart_by_their_groups() -> None:
    found = grid("trainer.environment.A=choice(x,y)", "cluster.environment.A=choice(x,y)")
    assert found[1].name == "trainer.environment.A=x cluster.environment.A=y []"
