"""`predict --against`: rows that somebody measured, beside the predictions of the same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import api
from orchestrator.cli.main import main
from orchestrator.config.compose import compose, composing
from orchestrator.config.errors import UsageError
from orchestrator.predict.measured import BACKWARD, LATER, OPTIMIZER, NotMeasuredError, read_measured
from orchestrator.predict.memory import predict_memory
from orchestrator.predict.read import read_effective, read_job
from orchestrator.vocabulary import Stage

DATA = Path(__file__).parent.parent / "data"
STUDY = DATA / "h200_1gpu_moonlight16L.jsonl"
RECORDED = DATA / "h200_recorded_moonlight16L.jsonl"
EVIDENCE = DATA.parent.parent / "docs" / "evidence" / "2026-11-29-h200-moonlight-16l" / "stages.jsonl"
JOB = ["study=moonlight_16l_1gpu", "study.candidates=[]", "model.gradient_accumulation_fusion=false"]
BY_HAND = [
    "trainer=bridge", "model=moonlight_16b", "model.num_layers=16", "model.num_moe_experts=16",
    "model.vocab_size=32768", "model.moe_shared_expert_overlap=false", "model.moe_router_force_load_balancing=true",
    "model.gradient_accumulation_fusion=false", "parallelism=single", "training=moonlight_16l_1gpu",
]  # fmt: skip
"""The same job without a preset of its own: what a published model's sizes are changed to."""


def against(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> Any:
    assert main(["predict", *words, "--against", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def row(**more: Any) -> dict[str, Any]:
    return {"modules": [], "phases": {"forward_it0": {"peak_allocated": 10**10}}, **more}


@pytest.mark.parametrize("words", [JOB, BY_HAND], ids=["preset", "by-hand"])
def test_the_command_line_alone_gives_the_job_that_was_measured(words: list[str]) -> None:
    """Nothing of the run is needed: what the recipe sets is known, and the rest is said."""
    effective = json.loads(RECORDED.read_text().splitlines()[0])["effective"]
    assert read_job(compose([*words, "recompute=control"])).job == read_effective(effective, 1)


@pytest.mark.parametrize("words", [JOB, BY_HAND], ids=["preset", "by-hand"])
def test_given_rows_are_within_their_goals(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    answer = against(capsys, STUDY, *words)
    assert {figure["what"] for figure in answer["figures"] if figure["goal"] is not None} == set(answer["worst"]) - {
        "setup"
    }
    assert all(figure["within"] for figure in answer["figures"] if figure["goal"] is not None)
    assert answer["worst"]["parameters"]["error"] == 0
    assert abs(answer["worst"]["saving"]["error"]) < 0.003


def test_own_records_are_held_by_what_they_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    answer = against(capsys, RECORDED)
    assert len({figure["name"] for figure in answer["figures"]}) == 2
    assert all(figure["within"] for figure in answer["figures"] if figure["goal"] is not None)


def test_an_evidence_file_names_the_one_saving_that_the_allocator_hides(capsys: pytest.CaptureFixture[str]) -> None:
    """`core_attn` gives back 17 MB of 58 GB; blocks that torch hands out are up to 1 MiB larger than asked for."""
    answer = against(capsys, EVIDENCE, *JOB)
    missed = {(one["name"], one["what"]) for one in answer["figures"] if one["within"] is False}
    assert missed == {("[core_attn]", "saving")}


def test_a_window_that_had_only_begun_is_left_out() -> None:
    phases = {"forward_it0": {"peak_allocated": 5}, "backward_it1": {"peak_allocated": 7}}
    assert (LATER, BACKWARD) not in read_measured(row(phases=phases)).peaks
    whole = {**phases, "forward_it1": {"peak_allocated": 6}, "optimizer_it1": {"peak_allocated": 8}}
    found = read_measured(row(phases=whole)).peaks
    assert (found[LATER, BACKWARD], found[LATER, OPTIMIZER]) == (7, 8)


SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"micro_batch_size": 1}, ["training.micro_batch_size=1"]),
    ({"seq_length": 16384}, ["training.seq_length=16384"]),
    ({"model": {"num_layers": 2}}, ["model.num_layers=2"]),
    ({"overrides": ["model.num_moe_experts=64", "parallelism.ep=4", "parallelism.world_size=4"]},
     ["model.num_moe_experts=64", "parallelism.ep=4", "parallelism.world_size=4"]),
    ({"exp_avg_dtype": "fp32", "exp_avg_sq_dtype": "fp32", "grad_reduce_in_fp32": True},
     ["precision.exp_avg_dtype=fp32", "precision.exp_avg_sq_dtype=fp32", "precision.grad_reduce_in_fp32=true"]),
    ({"use_precision_aware_optimizer": False}, ["precision.use_precision_aware_optimizer=false"]),
    ({"modules": ["moe_act", "mla_up_proj"]}, ["recompute_modules=[moe_act,mla_up_proj]"]),
    ({"granularity": "full", "method": "block", "num_layers": 3, "modules": []},
     ["recompute=full_block", "recompute_num_layers=3"]),
]  # fmt: skip


def test_a_rows_settings_are_those_of_a_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row(**settings)) for settings, _ in SETTINGS))
    figures = [one for one in against(capsys, path, *JOB)["figures"] if one["what"] == "forward"]
    with composing() as composer:
        peaks = []
        for _, words in SETTINGS:
            base = [] if "recompute=full_block" in words else ["recompute=control"]
            peaks.append(predict_memory(read_job(composer.compose([*JOB, *base, *words])).job).hottest.first)
    assert [one["predicted"] for one in figures] == [first[Stage.FORWARD] for first in peaks]
    assert len({str(sorted(first.items())) for first in peaks}) == len(SETTINGS)


def test_rows_are_held_against_the_control_of_the_same_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [
        row(),
        row(modules=["moe"], micro_batch_size=2),
        row(micro_batch_size=2, phases={"forward_it0": {"peak_allocated": 2 * 10**10}}),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    (saving,) = (one for one in against(capsys, path, *JOB)["figures"] if one["what"] == "saving")
    assert (saving["name"], saving["measured"]) == ("[moe] micro_batch_size=2", 10**10)


def test_a_row_without_a_prediction_takes_none_from_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    odd = row(granularity=None, modules=None, model={"cpu_offloading": True})
    path.write_text("\n".join(json.dumps(one) for one in (row(), odd, row(modules=["moe"]))))
    assert main(["predict", *JOB, "--against", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    assert len({one["name"] for one in json.loads(printed.out)["figures"]}) == 2
    assert "no prediction: model.cpu_offloading moves memory to the host" in printed.err
    path.write_text(json.dumps(odd))
    assert main(["predict", *JOB, "--against", str(path)]) == 2


def test_a_finished_configuration_needs_no_other_rows_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command line says the job of rows that do not bring their own."""
    path = tmp_path / "rows.jsonl"
    path.write_text(RECORDED.read_text() + json.dumps(row()))
    alone = against(capsys, RECORDED)["figures"]
    mixed = against(capsys, path, "recompute=control", "model=tiny_dense")["figures"]
    assert mixed[: len(alone)] == alone
    assert mixed[-1]["predicted"] < 10**9


def test_what_is_not_read_of_a_row_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row(layers=8)))
    assert main(["predict", *JOB, "--against", str(path)]) == 0
    assert "not read of these rows: layers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1"),
        ("[]", "no JSON object"),
        ('{"modules": []}', "has no peaks"),
        ('{"phases": {"forward_it0": {"peak_allocated": 1}}}', "does not say what it recomputes"),
        ('{"modules": "moe", "phases": {"forward_it0": {"peak_allocated": 1}}}', "no list of labels"),
        ('{"granularity": "some", "phases": {"forward_it0": {"peak_allocated": 1}}}', "none of selective, full"),
        ('{"granularity": "full", "phases": {"forward_it0": {"peak_allocated": 1}}}', "needs its num_layers"),
        ("", "has no rows"),
        (
            '{"modules": [], "effective": {}, "overrides": ["x=2"], "phases": {"forward_it0": {"peak_allocated": 1}}}',
            "overrides beside effective",
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line)
    assert main(["predict", *JOB, "--against", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_row_without_peaks_is_refused() -> None:
    with pytest.raises(NotMeasuredError, match="no peaks"):
        read_measured({"modules": []})


def test_the_call_in_python_says_what_the_verb_says(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recompute=selective", "recompute_modules=[moe]", "model=tiny_mla_moe"]
    assert main(["predict", *words, "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["candidates"]
    found = api.predict(*words)
    assert {key: found[key] for key in ("peak", "low", "high", "ranks")} == {
        key: said[key] for key in ("peak", "low", "high", "ranks")
    }
    with pytest.raises(UsageError, match="No prediction"):
        api.predict("trainer=bridge", "model=recipe", "recompute=control")


def test_an_engine_of_a_record_is_heeded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record = json.loads(RECORDED.read_text().splitlines()[0])
    for version, copies in (("2.11.0", True), ("2.14.0+abc", False)):
        record["software"] = {"transformer_engine": {"version": version}}
        path = tmp_path / "rank-00000.json"
        path.write_text(json.dumps(record))
        assert main(["predict", "trainer=bridge", "recompute=control", "--effective", str(path), "--json"]) == 0
        (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
        assert (candidate["ranks"][0]["state"]["temporaries"] > 0) is copies
        assert not any("Transformer Engine" in note for note in candidate["assumed"])


def test_an_unknown_engine_widens_the_range_downwards(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*JOB, "recompute=selective", "recompute_modules=[moe]"]
    unknown, old, new = (api.predict(*words, transformer_engine=engine) for engine in (None, "2.12", "2.17.1"))
    assert unknown["peak"] == old["peak"] > new["peak"]
    assert unknown["low"] < new["peak"] < old["low"]
    assert any("--transformer-engine" in note for note in unknown["assumed"])
    assert not any("--transformer-engine" in note for note in (*old["assumed"], *new["assumed"]))


def test_a_figure_that_misses_its_goal_is_called_missed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row()))
    assert main(["predict", *JOB, "--against", str(path)]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "its goal is" in line]
    assert said.endswith("its goal is 1%: missed")
    assert main(["predict", *JOB, "--against", str(RECORDED)]) == 0
    assert "missed" not in capsys.readouterr().out
