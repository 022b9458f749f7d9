from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from measured_rows import row

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.published_tables import published_rows, published_tables
from orchestrator.analysis.reproduce import commands_for, repeat_candidate, repeat_group
from orchestrator.config.compose import composing
from orchestrator.config.multirun import expand
from orchestrator.plan.candidate import offloads

GROUPS = ("model", "parallelism", "precision", "training", "trainer", "revisions")
SETTINGS = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")


def requests(command: str):
    """What a command line asks, candidate by candidate."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "orchestrator"]
    overrides = [word for word in words[3:] if word != "-m"]
    with composing() as composer:
        return [one.request for one in expand(overrides, composer, "-m" in words[3:])]


def asked(*overrides: str):
    with composing() as composer:
        return composer.compose(list(overrides))


def measured(request):
    made = row(list(request["recompute_modules"] or []), granularity=request["recompute_granularity"],
               method=request["recompute_method"], num_layers=request["recompute_num_layers"])  # fmt: skip
    requested = {key: request[key] for key in (*SETTINGS, *GROUPS)}
    return replace(made, requested=requested, trial=str(request["recompute_modules"]))


@pytest.mark.parametrize(
    "overrides",
    [
        ("recompute_modules=[moe,mlp]",),
        ("model=tiny_dense", "training.seq_length=64", "parallelism=single", "model.num_layers=3"),
        ("recompute=full_uniform", "trainer.environment.A='x y'", "trainer.time_limit=90m"),
        ("trainer=bridge", "model=moonlight_16l", "training=moonlight_16l_1gpu", "recompute=control"),
    ],
)
def test_the_command_asks_for_the_same_trial_again(overrides):
    request = asked(*overrides)
    made = measured(request)
    (line,) = compare([made]).groups[0].lines
    command = repeat_candidate(line.candidate, made, commands_for([made])[0])
    (again,) = requests(command)
    assert {key: again[key] for key in GROUPS} == {key: request[key] for key in GROUPS}
    assert {key: again[key] for key in SETTINGS[:2]} == {key: request[key] for key in SETTINGS[:2]} | {
        "recompute_modules": request["recompute_modules"] and sorted(request["recompute_modules"])
    }


def test_what_has_no_file_here_is_spelt_out():
    made = measured(asked("recompute_modules=[mlp]"))
    made = replace(made, requested=dict(made.requested) | {"trainer": {"name": "somebodys", "speed": 3}})
    (commands,) = commands_for([made])
    assert commands.base[0] == "trainer=somebodys"
    length = made.requested["training"]["seq_length"]
    assert {"trainer.speed=3", f"training.seq_length={length}"} <= set(commands.base)


def test_settings_that_are_the_recipes_own_have_no_command():
    made = measured(asked("trainer=bridge", "model=moonlight_16l"))
    made = replace(made, effective=None)
    (line,) = compare([made]).groups[0].lines
    assert repeat_candidate(line.candidate, made, commands_for([made])[0]) is None


def test_the_command_of_a_group_asks_for_each_of_its_candidates():
    rows = [
        measured(asked(change))
        for change in ("recompute=control", "recompute_modules=[moe,mlp]", "recompute=full_uniform")
    ]
    (group,) = compare(rows).groups
    found = requests(repeat_group(group, commands_for([rows[0]])[0]))
    assert [(one["recompute_granularity"], one["recompute_modules"], one["recompute_method"]) for one in found] == [
        ("selective", [], None),
        ("selective", ["mlp", "moe"], None),
        ("full", None, "uniform"),
    ]


@pytest.mark.parametrize("table", published_tables())
def test_a_published_table_is_repeated_by_its_study_file(table):
    (group,) = compare(published_rows(table)).groups
    command = repeat_group(group, commands_for([group.first_row])[0])
    assert len(requests(command.replace(" cluster=slurm", ""))) > 1


def test_commands_carry_the_target_of_the_study():
    made = measured(asked("recompute_modules=[moe]"))
    (line,) = compare([made]).groups[0].lines
    (again,) = requests(repeat_candidate(line.candidate, made, commands_for([made], 35.91)[0]))
    assert again["study"]["target_gb"] == 35.91


def test_commands_of_a_group_offload_for_the_candidate_that_does_alone():
    base = ("trainer=bridge", "model=moonlight_16l", "training=moonlight_16l_1gpu")
    offload = {"cpu_offloading": True, "cpu_offloading_num_layers": 4}
    first = measured(asked(*base, "recompute=off", *(f"model.{name}={value}" for name, value in offload.items())))
    first = replace(first, effective={"model": {**first.effective["model"], **offload}})
    rows = [first, measured(asked(*base, "recompute_granularity=selective", "recompute_modules=[core_attn]"))]
    (group,) = compare(rows).groups
    (commands,) = commands_for([first])
    assert not any("cpu_offloading" in word for word in commands.base)
    settings = [(one["recompute_granularity"], offloads(one)) for one in requests(repeat_group(group, commands))]
    assert sorted(settings, key=str) == [("selective", False), (None, True)]
