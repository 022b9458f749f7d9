"""Odd words on a command line: each ends in one line that names the setting and what would work, never a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.config.compose import Composer, compose, composing
from orchestrator.config.errors import UsageError
from orchestrator.config.multirun import expand
from orchestrator.config.typecheck import settings as known_settings
from orchestrator.plan.candidate import Candidate
from orchestrator.plan.forecast import forecasts
from orchestrator.plan.plan import make_plan

JARGON = re.compile(r"\w(Error|Exception)\b|omegaconf|NoneType|<class|object at|typing\.|Lexer|Error merging")


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with composing(working_dir=Path("/")) as opened:
        yield opened


def answer(composer: Composer, *words: str) -> str | None:
    """The refusal of a command line, by the schema or by the rules; None where it would go on to the framework."""
    try:
        composed = expand(words, composer, multirun=True)
    except UsageError as error:
        return str(error)
    plan = make_plan("odd", [Candidate(one.name, one.request) for one in composed], known={})
    forecasts(plan)
    return plan.deciding(plan.rejected[0]).message if plan.rejected and not plan.new else None


KINDS: dict[str, tuple[list[str], list[str]]] = {
    # a group's file
    "null for a group": (["cluster=null"], ["cluster=null", "slurm"]),
    "numbers for a group": (["model=choice(1,2)"], ["model=1", "tiny_dense"]),
    "an interpolation for a group": (["cluster=${oc.env:NOPE}"], ["cluster=${oc.env:NOPE}", "slurm"]),
    "a range without steps for a group": (["cluster=range(1,3,0)"], ["cluster=range(1,3,0)", "zero"]),
    "a group left out": (["~training"], ["training cannot be left out"]),
    # shapes
    "a dictionary for a list": (["recompute_modules={a:1}"], ["recompute_modules must be a list", "{'a': 1}"]),
    "a list for a dictionary": (["cluster.environment=[1,a]"], ["cluster.environment must be a dictionary"]),
    "a list for a group of settings": (
        ["cluster=slurm", "cluster.container=[1]"],
        ["cluster.container must be a group of settings"],
    ),
    "a list where a word says which schema holds": (["cluster.kind=[]"], ["cluster.kind is []", "local"]),
    "a quoted list": (["recompute_modules='[mlp]'"], ["Write recompute_modules=[mlp], without quotes"]),
    "words in a window": (["training.steady_window=[a,b]"], ["training.steady_window[0] must be an integer"]),
    "an opening of an interpolation": (["model.name='${'"], ["model.name"]),
    # what cannot be read
    "letters beyond ASCII": (["model.name=é"], ["model.name", "Write 'model.name=\"é\"'"]),
    "no key": (["=1"], ["'=1' is no override"]),
    "two dots": (["training..seed=1"], ["'training..seed' is no name of a setting"]),
    "an empty choice": (["training.seed=choice()"], ["training.seed", "empty choice"]),
    "an open quote": (['model.name="a'], ["model.name", "quotes do not close"]),
    "candidates without quotes": (["study.candidates=[[training.seed=1,2]]"], ["study.candidates", "in quotes"]),
    "a number among candidates": (["study.candidates=[[1]]"], ["study.candidates[1]", "'1' is no override"]),
    # interpolations
    "an unknown interpolation": (["cluster.gpu_type=${nope}"], ["cluster.gpu_type", "nope"]),
    "an unknown variable": (["model.name=${oc.env:NOPE_X}"], ["model.name", "NOPE_X"]),
    "an interpolation of itself": (["training.seed=${training.seed}"], ["training.seed", "ecursive"]),
    "a folder of files that is not there": (["hydra.searchpath=[file:///nope]"], ["hydra.searchpath", "/nope"]),
    # sweeps of what a candidate cannot have of its own
    "a sweep of set-up lines": (["cluster.setup=[a],[b]"], ["cluster.setup cannot be swept"]),
    "a sweep of trials at a time": (["cluster.parallel_trials=1,2"], ["cluster.parallel_trials cannot be swept"]),
    "a candidate's own retries": (
        ['study.candidates=[["cluster.retries=2"]]'],
        ["study.candidates[1]: cluster.retries is one for the whole command"],
    ),
    # values that no trainer could take
    "no results folder": (["results_dir="], ["results_dir is empty"]),
    "a results folder with a null byte": (["results_dir='a\0b'"], ["results_dir"]),
    "a name with a null byte": (["study.name='a\0b'"], ["study.name has a null byte"]),
    "a candidate that is a word": (["study.candidates=[a]"], ["study.candidates[0]", "list of overrides"]),
    "a setting like no other": (["+model.qqqqqqq=1"], ["model.qqqqqqq is not a setting, and no setting of model"]),
    "no threads": (["trainer.threads_per_rank=0"], ["trainer.threads_per_rank must be above zero"]),
    "a learning rate below zero": (["trainer.learning_rate=-1"], ["trainer.learning_rate must be zero or more"]),
    "sets of no label": (["study.mode=lattice", "study.largest=-1"], ["study.largest must be above zero"]),
    "a vocabulary in steps of nothing": (
        ["model.make_vocab_size_divisible_by=0"],
        ["model.make_vocab_size_divisible_by is 0", "1 or more"],
    ),
    "a negative width": (["model.ffn_hidden_size=-5"], ["model.ffn_hidden_size is -5"]),
    "a dropout above one": (["model.hidden_dropout=2"], ["model.hidden_dropout is 2", "0 to 1"]),
    "a recipe's trainer without a recipe": (["trainer=bridge"], ["model.recipe", "model=llama3_70b"]),
    "a recipe that is no dotted name": (["trainer=bridge", "model.recipe=nope"], ["model.recipe=nope", "dotted"]),
    "layers counted with the embedding": (
        ["model.account_for_embedding_in_pipeline_split=true"],
        ["model.account_for_embedding_in_pipeline_split", "nearest pp"],
    ),
    "padding for no format": (
        ["model.moe_router_padding_for_quantization=true"],
        ["model.moe_router_padding_for_quantization=true", "precision.fp8"],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_odd_input_is_answered_with_its_setting_and_what_would_work(composer: Composer, kind: str) -> None:
    words, parts = KINDS[kind]
    said = answer(composer, *words)
    assert said is not None
    assert "\n" not in said
    assert not JARGON.search(said), said
    for part in parts:
        assert part in said


VALUES = [
    *("null", "true", "1.5", "-1", "0", "1e400", "nan", "-inf", "", "' '", "'a b'", "é✓", "[]", "[[1]]", "{}", "{a:1}"),
    *("[null]", "[1,a]", "[{a:1}]", "10:30", "9" * 25, "${nope}", "[${nope}]", "???", "recipe", "{a:{b:[1]}}", "'${'"),
    *(
        "0x10",
        '"null"',
        "a,b",
        "1,2",
        "[],[a]",
        "choice(1,2)",
        "range(0,0)",
        "interval(0,1)",
        "glob(*)",
        "shuffle(1,2)",
    ),
]
SETTINGS = [name for name in known_settings() if name not in ("dry_run",)]
FORMS = ["{}={}", "+{}={}", "++{}={}", "~{}", "{}@x={}"]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(SETTINGS), value=st.sampled_from(VALUES), form=st.sampled_from(["{}={}"] * 6 + FORMS))
def test_any_value_for_any_setting_goes_on_or_is_refused_in_one_line_that_names_it(
    composer: Composer, name: str, value: str, form: str
) -> None:
    kind = ["cluster=slurm"] if name.startswith("cluster.") else []
    said = answer(composer, *kind, form.format(name, value))
    if said is not None:
        assert "\n" not in said
        assert not JARGON.search(said), said
        assert name.split(".")[0] in said or name.rsplit(".", 1)[-1] in said, said


def test_times_in_files_are_read_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "trainer").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("defaults: [slurm, _self_]\ntime: 10:30\nnodes: 2\nmem: 010\n")
    (tmp_path / "trainer" / "mine.yaml").write_text("defaults: [mcore_cpu, _self_]\ntime_limit: 1:30:00\n")
    request = compose(["cluster=mine", "trainer=mine"], config_dir=str(tmp_path))
    assert request["cluster"]["time"] == "10:30"
    assert request["cluster"]["nodes"] == 2
    assert request["trainer"]["time_limit"] == 5400.0


FILES: dict[str, tuple[bytes, str]] = {
    "a list": (b"- a\n", "it is a list"),
    "a number": (b"5\n", "model=odd: A configuration file is not a dictionary"),
    "no text": (b"\x00\xff", "model=odd: A configuration file is no UTF-8 text"),
    "another encoding": ("name: caf\xe9\n".encode("latin-1"), "model=odd: A configuration file is no UTF-8 text"),
    "itself": (b"defaults: [odd]\nname: x\n", "model=odd: It leads back to itself"),
    "a file that is not there": (b"defaults: [nothere]\n", "Could not load 'model/nothere'."),
    "defaults that are no list": (b"defaults: 5\n", "defaults must be a list"),
    "two keys in a default": (b"defaults: [{a: b, c: d}]\n", "Too many keys in default item"),
    "a setting like no other": (b"qqqqqqq: 1\n", "model.qqqqqqq is not a setting, and no setting of model is like it"),
    "a number for a key": (b"1: 2\n", "model.1 is not a setting"),
    "lists in lists": (b"name: x\nfoo: " + b"[" * 300 + b"]" * 300, "model=odd: It leads back to itself, or is nested"),
}


@pytest.mark.parametrize("kind", FILES)
def test_each_kind_of_odd_file_is_refused_in_one_line_that_names_it(kind: str, tmp_path: Path) -> None:
    content, part = FILES[kind]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "odd.yaml").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        compose(["model=odd", "training.seed=2"], config_dir=str(tmp_path))
    said = str(caught.value)
    assert part in said
    assert "model" in said
    assert "\n" not in said
    assert not JARGON.search(said), said


def test_more_candidates_than_a_command_takes_are_refused_before_any_is_composed(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.config.multirun.MOST_POINTS", 3)
    listed = ",".join(f'["no.such.setting={number}"]' for number in range(4))
    assert "study.candidates has 4 candidates" in str(answer(composer, f"study.candidates=[{listed}]"))


def test_files_that_set_what_is_one_for_the_command_differently_are_refused(tmp_path: Path) -> None:
    (tmp_path / "revisions").mkdir()
    for name, retries in (("one", 1), ("two", 2)):
        text = f"# @package _global_\nrevisions: {{bridge: null}}\ncluster: {{retries: {retries}}}\n"
        (tmp_path / "revisions" / f"{name}.yaml").write_text(text)
    with composing(str(tmp_path)) as opened, pytest.raises(UsageError, match=r"cluster\.retries is 1 in one"):
        expand(["revisions=one,two"], opened, multirun=True)


def test_values_are_written_as_the_documentation_says() -> None:
    table = (Path(__file__).parents[2] / "docs" / "plan.md").read_text().partition("## Writing values")[2]
    written = [word for row in table.splitlines() if row.startswith("| `") for word in re.findall(r"`([^`]+)`", row)]
    overrides = [word.strip("'") for word in written if re.match(r"'?\w+(\.\w+)*=", word)]
    assert len(overrides) > 6
    for override in overrides:
        with composing(working_dir=Path("/")) as opened:
            kind = ["cluster=slurm"] if override.startswith("cluster.") else []
            assert expand([*kind, override], opened, multirun=True)
