from __future__ import annotations

import json
import shlex
import sqlite3

import pytest
import yaml
from written_results import write_study

from orchestrator.cli.main import main
from orchestrator.config.compose import composing
from orchestrator.config.multirun import expand
from orchestrator.store.database import open_store
from orchestrator.store.plans import PlannedRow, new_plan, write_plan


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A database with the published tables."""
    path = str(tmp_path_factory.mktemp("published") / "evidence.sqlite")
    assert main(["import", "published", "--db", path]) == 0
    return path


@pytest.fixture
def database(published, tmp_path, monkeypatch):
    """The published database, asked from an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    return published


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A results folder with one study of three candidates, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    write_study(tmp_path / "results", "demo", [[], ["moe"], ["mlp", "moe"]], batch="job-1")
    return tmp_path / "results"


def answer(capsys, *words):
    """Exit code and standard output of a command, what was printed before it aside."""
    capsys.readouterr()
    code = main(list(words))
    return code, capsys.readouterr().out


def test_compare_prints_the_guides_table(database, capsys):
    code, text = answer(capsys, "compare", "published/moonlight-16b", "--db", database)
    assert code == 0
    (line,) = [line for line in text.splitlines() if line.startswith("moe_act ")]
    assert line.split()[:9] == ["moe_act", "35.941", "-", "-", "-", "-", "466.26", "75.50", "-1.85%"]
    assert "+1.99%" in line


def test_published_rows_wait_for_nothing(database, capsys):
    text = answer(capsys, "status", "published/llama3-70b-sft", "--db", database)[1]
    assert "the same command" not in text
    assert "unfinished" not in text.partition("\n")[2]
    assert "no outcome" in text


def test_studies_that_do_not_match_are_refused_with_the_fields(database, capsys):
    words = ["compare", "published/moonlight-16b", "published/nemotron-3-nano", "--db", database]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "published ('moonlight-16b' | 'nemotron-3-nano')" in said
    assert "--force-unmatched" in said
    code, text = answer(capsys, *words, "--force-unmatched")
    assert code == 0
    assert "vs []" not in text
    assert "differs: published" in text


@pytest.mark.parametrize(("target", "expected"), [("40", "[]"), ("36.0", "moe_act"), ("35.91", "mla_up_proj")])
def test_recommend_answers_with_the_choice(database, capsys, target, expected):
    words = ["recommend", "published/moonlight-16b", "--target-gb", target, "--json", "--db", database]
    code, text = answer(capsys, *words)
    assert code == 0
    assert json.loads(text)["recommendations"][0]["choice"]["name"] == expected


def test_recommend_says_none_rather_than_nearest_miss(database, capsys):
    words = ["recommend", "published/moonlight-16b", "--target-gb", "35.90", "--db", database]
    code, text = answer(capsys, *words)
    assert code == 3
    assert "none: no candidate passed with every rank at or below 35.900 GB." in text
    assert "cfg.model" not in text


@pytest.mark.parametrize(
    "flags", [[], ["--target-gb", "x"], ["--target-gb", "nan"], ["--target-gb", "1", "--headroom-gb", "2"]]
)
def test_recommend_needs_a_target_that_makes_sense(database, capsys, flags):
    assert main(["recommend", "published/moonlight-16b", *flags, "--db", database]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unknown_study_is_answered_with_the_nearest(database, capsys):
    assert main(["compare", "publsihed/moonlight-16b", "--db", database]) == 2
    assert "published/moonlight-16b" in capsys.readouterr().err


def test_compare_collects_first_and_says_cpu(results, capsys):
    code, text = answer(capsys, "compare")
    assert code == 0
    assert text.startswith("study demo\n")
    assert "device: cpu. These rows were measured on a CPU" in text
    assert "adding mlp to moe: peak" in text
    assert "adding moe to []" not in text


def test_a_trial_that_has_not_run_is_an_answer_of_its_own(results, capsys):
    assert main(["collect"]) == 0
    row = PlannedRow("f" * 20, "[mlp]", "mcore_cpu", 2, {"recompute_granularity": "selective"})
    with open_store(results / "store.sqlite", write=True) as store, store.writing() as connection:
        write_plan(connection, new_plan("later", [row]))
    assert main(["compare", "f" * 20]) == 3
    assert "has run yet" in capsys.readouterr().err


def test_a_trial_that_has_not_run_is_not_said_to_have_ended(results, capsys):
    assert main(["collect"]) == 0
    row = PlannedRow("f" * 20, "[mlp]", "mcore_cpu", 2, {"recompute_granularity": "selective"})
    with open_store(results / "store.sqlite", write=True) as store, store.writing() as connection:
        write_plan(connection, new_plan("demo", [row]))
    text = answer(capsys, "compare", "demo", "--force-unmatched")[1]
    assert "not run yet" in text
    assert "ended before" not in answer(capsys, "compare", "demo")[1]
    assert "ended before" not in text


def test_compare_as_json_has_bytes_and_fractions(results, capsys):
    _, text = answer(capsys, "compare", "demo", "--json")
    (group,) = json.loads(text)["groups"]
    assert group["control"] == "[]"
    assert [row["peak_allocated"] for row in group["rows"]] == [1_000_001, 900_001, 800_001]
    assert group["rows"][1]["peak_delta"]["fraction"] == pytest.approx(-0.1, abs=1e-5)
    assert group["rows"][0]["peak_delta"] is None


def test_diagnose_ends_with_commands_that_compose_to_what_was_run(results, capsys):
    write_study(results, "bare", [["layernorm"]], batch="job-2")
    code, text = answer(capsys, "diagnose", "bare", "--json")
    assert code == 0
    (finding,) = json.loads(text)["findings"]
    assert finding["rule"] == "no-control"
    words = shlex.split(finding["steps"][0]["command"])
    assert words[:4] == ["python", "-m", "orchestrator", "-m"]
    with composing() as composer:
        (candidate,) = expand(words[4:], composer, True)
    assert candidate.request["recompute_modules"] == []
    assert candidate.request["study"]["name"] == "bare"
    assert candidate.request["model"]["num_layers"] == 2
    assert candidate.request["training"]["seq_length"] == 8


def test_the_rules_of_diagnosis_are_listed_with_their_sources(capsys):
    assert main(["diagnose", "--rules"]) == 0
    assert "core-attn-little-effect: guide, Failure Diagnosis, row 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["out.csv", "out.json", "out.md", "out.yaml", "out.parquet"])
def test_export_writes_the_format_of_the_files_ending(results, tmp_path, capsys, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    assert main(["export", "demo", "--output", str(path)]) == 0
    content = path.read_bytes()
    checks = {
        "out.csv": lambda: content.decode().count("\r\n") == 4,
        "out.json": lambda: len(json.loads(content)["groups"][0]["rows"]) == 3,
        "out.md": lambda: b"| `mlp`, `moe` |" in content,
        "out.yaml": lambda: len(yaml.safe_load(content)["measured_results"][0]["experiments"]) == 3,
        "out.parquet": lambda: content[:4] == b"PAR1",
    }
    assert checks[name]()


def test_export_into_a_missing_folder_leaves_nothing_and_says_so(results, tmp_path, capsys):
    assert main(["export", "demo", "--output", str(tmp_path / "no" / "out.csv")]) == 1
    assert "--output" in capsys.readouterr().err


def test_parquet_to_a_terminal_is_refused(results, capsys):
    assert main(["export", "demo", "--format", "parquet"]) == 2
    assert "--output" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["nowhere.sqlite", "published moonlight", "."])
def test_importing_what_is_not_there_is_refused_in_one_line(database, capsys, source):
    assert main(["import", *source.split(), "--db", database]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_results_folder_and_a_database_are_imported_once(results, tmp_path, capsys):
    assert main(["compare"]) == 0
    team = ["--db", str(tmp_path / "team.sqlite"), "--json"]
    first = json.loads(answer(capsys, "import", str(results / "store.sqlite"), *team)[1])
    second = json.loads(answer(capsys, "import", str(results / "store.sqlite"), *team)[1])
    assert (first["new"], second["new"], second["known"]) == (3, 0, 3)
    folder = ["--db", str(tmp_path / "other.sqlite"), "--json"]
    assert json.loads(answer(capsys, "import", str(results), *folder)[1])["new"] == 3


def test_recommend_refuses_studies_that_do_not_match_and_names_their_keys(database, capsys):
    words = ["recommend", "published/moonlight-16b", "published/nemotron-3-nano", "--target-gb", "60", "--db", database]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "They differ in: published ('moonlight-16b' | 'nemotron-3-nano')" in said
    key = said.partition("--key (")[2].partition(",")[0]
    assert main([*words, "--key", key]) in (0, 3)


@pytest.mark.parametrize(
    ("target", "said"),
    [("40GiB", "40GiB is 42.9497"), ("0", "--target-gb: 0 is no size"), ("-1", "no size"), ("nan", "no size")],
)
def test_recommend_takes_gigabytes_only(database, capsys, target, said):
    assert main(["recommend", "published/moonlight-16b", "--target-gb", target, "--db", database]) == 2
    assert said in capsys.readouterr().err


def test_recommend_says_in_what_the_match_keys_of_one_study_differ(results, capsys):
    code, _ = answer(capsys, "compare", "demo")
    assert code == 0
    with sqlite3.connect(results / "store.sqlite") as database:
        database.execute("UPDATE attempts SET device_name = 'another' WHERE trial_id LIKE 'moe%'")
    code, text = answer(capsys, "recommend", "demo", "--target-gb", "500")
    assert code == 0
    assert "not weighed against each other. The keys differ in:\n  hardware.name: " in text


def test_export_says_what_it_wrote_and_refuses_an_ending_that_stands_for_no_format(results, capsys, tmp_path):
    code, text = answer(capsys, "export", "demo", "--output", "x.md")
    assert (code, text) == (0, f"x.md: {(tmp_path / 'x.md').stat().st_size / 1000:.0f} kB\n")
    assert main(["export", "demo", "--output", "x.txt"]) == 2
    assert "No format is written to .txt files: name the file .csv, " in capsys.readouterr().err
    assert not (tmp_path / "x.txt").exists()
    assert main(["export", "demo", "--output", "x.txt", "--format", "csv"]) == 0


def test_a_query_table_rounds_floats_and_json_does_not(results, capsys):
    sql = "SELECT 1.0 / 3 AS third, 12345678.9 AS large FROM v_trials LIMIT 1"
    _, text = answer(capsys, "query", sql)
    assert text.splitlines()[-1].split() == ["0.333333", "12345679"]
    code, text = answer(capsys, "query", sql, "--json")
    assert code == 0
    assert "0.3333333333333333" in text
