"""Predictions are kept before a run, and held against what it measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.config.compose import compose
from orchestrator.plan.plan import Plan
from orchestrator.plan.predictions import FOLDER, keep_predictions, predict_trial, read_predictions
from orchestrator.predict import build, layer_kinds
from orchestrator.predict.fields import READ, only_read
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.past import SETUP, WHOLE, Made, Outcome, errors_of, overall, summarise
from orchestrator.predict.read import read_effective, read_job
from orchestrator.vocabulary import Stage

DATA = Path(__file__).parent.parent / "data"


def made(trial: str, peak: int, **stages: int) -> Made:
    return Made(trial, f"name {trial}", "tiny", "[]", "release 1", 1.0, peak, peak - 5, peak + 5, stages)


def plan_of(*trials: str, **settings: Any) -> Plan:
    request = compose(["recompute=control", *(f"{key}={value}" for key, value in settings.items())])
    entries = [SimpleNamespace(trial=trial, name="control", request=request, effective=None) for trial in trials]
    return cast("Plan", SimpleNamespace(new=entries))


def test_errors_are_of_the_peak_and_of_every_stage_that_both_have() -> None:
    errors = errors_of(
        [made("a", 100, forward=80, backward=100)],
        [Outcome("a", 125, {"forward": 100, "optimizer_step": 90})],
    )
    assert [(error.stage, round(error.share, 3)) for error in errors] == [(WHOLE, -0.2), ("forward", -0.2)]
    assert not errors[0].inside


def test_the_one_figure_of_set_up_is_held_against_its_highest_stage() -> None:
    """Masters are made after the model: on a real GPU 16.8 GB after the one, 22.5 after the other."""
    predicted = made("a", 100, model_build=22, forward=80)
    whole = {"model_build": 17, "optimizer_build": 22, "data_build": 21, "forward": 80}
    found = [
        (error.stage, error.predicted, error.measured) for error in errors_of([predicted], [Outcome("a", 100, whole)])
    ]
    assert found == [(WHOLE, 100, 100), (SETUP, 22, 22), ("forward", 80, 80)]
    stopped = errors_of([predicted], [Outcome("a", 100, {"model_build": 17})])
    assert [error.stage for error in stopped] == [WHOLE]


def test_a_trial_that_was_not_measured_has_no_error() -> None:
    assert errors_of([made("a", 100)], [Outcome("b", 100), Outcome("a", None)]) == []


def test_errors_are_summed_up_by_model_stage_labels_and_revision() -> None:
    errors = errors_of([made("a", 100), made("b", 110)], [Outcome("a", 100), Outcome("b", 100)])
    (summary,) = summarise(errors)
    assert (summary.count, summary.inside) == (2, 1)
    assert (summary.mean_share, summary.worst_share) == (pytest.approx(0.05), pytest.approx(0.1))


def test_each_stage_is_held_against_the_rank_that_is_the_hottest_in_it() -> None:
    """A last stage has the larger model, a first one the larger peak: each stage has its own hottest rank."""
    pipeline = compose(["recompute=control", "parallelism.pp=2", "parallelism.world_size=2"])
    prediction = predict_memory(read_job(pipeline).job)
    kept = predict_trial("one", "[]", pipeline)
    assert kept is not None
    ranks = prediction.ranks
    assert len(ranks) == 2
    for stage in ranks[0].first:
        highest = max(peaks.get(stage, 0) for rank in ranks for peaks in (rank.first, rank.steady))
        assert kept.stages[str(stage)] == highest
    assert kept.stages["model_build"] > prediction.hottest.first[Stage.MODEL_BUILD]


def test_stages_that_an_earlier_release_kept_are_of_one_rank_and_not_compared() -> None:
    old = replace(made("a", 100, forward=80), schema=1)
    assert [error.stage for error in errors_of([old], [Outcome("a", 125, {"forward": 100})])] == [WHOLE]


def test_a_person_reads_errors_of_all_labels_together() -> None:
    errors = errors_of(
        [replace(made("a", 100), labels="[]"), replace(made("b", 110), labels="[moe]")],
        [Outcome("a", 100), Outcome("b", 100)],
    )
    assert len(summarise(errors)) == 2
    (together,) = overall(errors)
    assert (together.count, together.worst_share) == (2, pytest.approx(0.1))


def test_only_what_uses_gpus_follows_transformer_engine() -> None:
    cpu = predict_trial("one", "[]", compose(["recompute=control"]))
    cuda = predict_trial("one", "[]", compose(["study=moonlight_16l_1gpu", "study.candidates=[]", "recompute=control"]))
    assert cpu is not None
    assert cuda is not None
    assert "Transformer Engine" not in cpu.revision
    assert "Transformer Engine" in cuda.revision


def test_a_prediction_stays_what_it_was_before_the_run(tmp_path: Path) -> None:
    assert keep_predictions(tmp_path, plan_of("one", "two")) == 2
    before = read_predictions(tmp_path)
    assert keep_predictions(tmp_path, plan_of("one", **{"training.seq_length": 1024})) == 0
    assert read_predictions(tmp_path) == before
    assert {one.trial for one in before} == {"one", "two"}
    assert before[0].peak > 0


def test_nobody_else_can_read_the_predictions(tmp_path: Path) -> None:
    keep_predictions(tmp_path, plan_of("one"))
    assert (tmp_path / FOLDER).stat().st_mode & 0o777 == 0o700


def test_a_file_that_is_no_prediction_is_left_out(tmp_path: Path) -> None:
    keep_predictions(tmp_path, plan_of("one"))
    (tmp_path / FOLDER / "0.json").write_text("{]")
    (tmp_path / FOLDER / "1.json").write_text('[{"trial": 3}]')
    assert [one.trial for one in read_predictions(tmp_path)] == ["one"]


def test_a_recipe_whose_sizes_nobody_knows_is_not_predicted() -> None:
    assert (
        predict_trial(
            "one",
            "control",
            compose(["trainer=bridge", "model=nemotron3_nano", "model.recipe=own.recipes.tuned_config"]),
        )
        is None
    )


def test_a_recipe_that_was_asked_is_predicted_from_what_it_answered(tmp_path: Path) -> None:
    """One answer serves every candidate: what it recomputes is the request's."""
    answer = json.loads((DATA / "h200_recorded_moonlight16L.jsonl").read_text().splitlines()[0])["effective"]
    entries = [
        SimpleNamespace(
            trial=trial,
            name=trial,
            request=compose(["study=moonlight_16l_1gpu", f"recompute_modules=[{modules}]"]),
            effective=only_read(answer),
        )
        for trial, modules in (("one", ""), ("two", "moe"))
    ]
    assert keep_predictions(tmp_path, cast("Plan", SimpleNamespace(new=entries))) == 2
    one, two = sorted(read_predictions(tmp_path), key=lambda made: made.trial)
    # An H200 measured 69.14 and 47.68 GB.
    assert one.stages["forward"] == pytest.approx(69.14e9, rel=0.01)
    assert two.stages["forward"] == pytest.approx(47.68e9, rel=0.01)


def test_what_is_kept_of_an_answer_predicts_what_the_whole_answer_does() -> None:
    for line in (DATA / "h200_recorded_moonlight16L.jsonl").read_text().splitlines():
        effective = json.loads(line)["effective"]
        assert read_effective(only_read(effective), 1) == read_effective(effective, 1)
        assert len(json.dumps(only_read(effective))) < 5000


def test_every_setting_that_a_prediction_reads_is_kept_of_an_answer() -> None:
    """Whatever the builder asks a section for, for any kind of model, has its name in the list."""
    source = "".join(Path(module.__file__).read_text() for module in (build, layer_kinds))
    asked = set(re.findall(r"(?:model|optimizer|ddp|fields)\.get\(\s*\"(\w+)\"", source))
    asked |= set(re.findall(r"(?:integer|positive|optional|word)\(\w+(?:\.\w+)?, \"(\w+)\"", source))
    assert len(asked) > 70
    assert asked <= frozenset().union(*READ.values())
