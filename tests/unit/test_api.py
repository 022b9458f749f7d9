from __future__ import annotations

import pytest
from written_results import write_study

from orchestrator import api
from orchestrator.analysis.published_tables import published_tables
from orchestrator.cli.main import main
from orchestrator.config.errors import NothingQualifies, UsageError
from orchestrator.report.export_rows import FIELDS
from orchestrator.store.collect import collect
from orchestrator.store.database import default_url, open_store


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    write_study(folder, "demo", [[], ["mlp"], ["moe", "mlp"]], batch="b1")
    with open_store(default_url(folder), write=True) as store:
        collect(store, folder)
    return folder


@pytest.fixture
def study(results):
    with api.connect(results) as database:
        yield database.study("demo")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "x.sqlite"
    assert main(["import", "published", "--db", str(path)]) == 0
    with api.connect(path) as database:
        yield database


def test_studies_are_listed_with_how_far_they_are(results):
    with api.connect(results) as database:
        (one,) = database.studies()
    assert (one.name, one.trials, one.labels) == ("demo", 3, {"pass": 3})


def test_lines_are_typed(study):
    control, *others = study.lines
    assert control.is_control
    assert [line.text for line in others] == ["mlp", "mlp, moe"]
    assert others[0].peak.allocated == 900_001
    assert others[0].time_delta.fraction == pytest.approx(0.1, abs=0.01)


def test_pick_is_the_line_that_recommend_names(study, capsys, results):
    line = study.pick(target_gb=0.00095)
    assert main(["recommend", "demo", "--target-gb", "0.00095", "--results", str(results)]) == 0
    assert f"{line.text}: step" in capsys.readouterr().out
    assert study.pick(target_gb=0.0001) is None


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_have_the_fields_of_an_export_with_their_types_and_gaps(study, library):
    frame = getattr(study, f"to_{library}")()
    assert list(frame.columns) == [field.name for field in FIELDS]
    assert list(frame["peak_allocated_bytes"]) == [1_000_001, 900_001, 800_001]
    first = frame["time_delta"][0]
    assert first is None or str(first) == "<NA>"
    assert "nt64" in str(frame["peak_allocated_bytes"].dtype)


@pytest.mark.parametrize("name", ["frontier", "stages", "history"])
def test_figures_are_those_of_the_report(study, name):
    figure = study.figure(name)
    assert figure.table.rows
    assert figure.vega_lite()["$schema"].endswith("v6.json")


def test_a_figure_of_one_candidate_shows_that_one(study):
    assert study.figure("stages", "mlp, moe").title.endswith("mlp, moe")


def test_wrong_names_are_answered_with_the_right_ones(study, results):
    with pytest.raises(UsageError, match="did you mean frontier"):
        study.figure("frontiers")
    with pytest.raises(UsageError, match="there is \\[\\]; mlp; mlp, moe"):
        study.figure("stages", "nothing")
    with api.connect(results) as database, pytest.raises(UsageError, match="did you mean"):
        database.study("demmo")


def test_where_there_is_no_database_connect_says_so(tmp_path):
    with pytest.raises(Exception, match=str(tmp_path)):
        api.connect(tmp_path / "none.sqlite")


@pytest.mark.parametrize("table", published_tables())
def test_published_tables_are_read_as_any_study(published, table):
    study = published.study(f"published/{table}")
    assert study.to_polars().height == len(study.lines)
    assert study.figure("frontier").table.rows


def test_several_match_keys_are_never_weighed_against_each_other(published):
    study = published.study(*(f"published/{table}" for table in published_tables()))
    with pytest.raises(UsageError, match="several match keys"):
        study.pick(target_gb=60)
    keys = [group.digest for group in study.groups if group.first_row.source["table"] == "moonlight-16b"]
    assert study.key(keys[0]).pick(target_gb=36).text == "moe_act"


def test_the_report_verb_writes_a_page_and_its_markdown(results, tmp_path, capsys):
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    assert main(["report", "demo", "--results", str(results), "-o", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert main(["report", "demo", "--results", str(results), "-o", str(text), "--markdown"]) == 0
    assert text.read_text().startswith("# Which activations to recompute: demo")
    assert (tmp_path / "r-frontier-0.png").read_bytes().startswith(b"\x89PNG")
    assert "r-stages.png" in capsys.readouterr().out


def test_a_report_of_nothing_says_so(results, tmp_path):
    with api.connect(results) as database, pytest.raises((NothingQualifies, UsageError)):
        database.study("other")
    assert main(["report", "other", "--results", str(results)]) == 2
    assert main(["report", "demo", "--results", str(results), "-o", str(tmp_path / "no" / "r.html")]) == 1
