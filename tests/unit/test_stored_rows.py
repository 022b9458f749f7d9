from __future__ import annotations

import json
from dataclasses import replace

import pytest
from written_results import write_study

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.publish import import_rows
from orchestrator.analysis.published_tables import published_rows, published_tables
from orchestrator.analysis.stored import study_rows
from orchestrator.report.compare import footnotes
from orchestrator.store.collect import collect
from orchestrator.store.database import open_store
from orchestrator.store.plans import PlannedRow, new_plan, write_plan


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite", write=True) as opened:
        yield opened


def read(store, study):
    with store.reading() as connection:
        return study_rows(connection, study)


def test_published_tables_come_out_of_the_database_as_they_went_in(store):
    for table in published_tables():
        rows = published_rows(table)
        assert import_rows(store, rows) == (len(rows), 0)
        read_back = [replace(row, ranks_reported=None) for row in read(store, f"published/{table}")]
        assert compare(read_back) == compare(rows)


def test_importing_twice_doubles_nothing(store):
    rows = published_rows("moonlight-16b")
    import_rows(store, rows)
    assert import_rows(store, list(reversed(rows))) == (0, 6)
    assert len(read(store, "published/moonlight-16b")) == 6


def test_a_study_that_nobody_asked_for_has_no_rows(store):
    assert read(store, "'; DROP TABLE trials; --") == []


def test_a_rejected_candidate_stands_beside_the_rows_that_asked_for_the_same(tmp_path):
    results = tmp_path / "results"
    write_study(results, "demo", [[], ["moe"]], batch="job-1")
    with open_store(results / "store.sqlite", write=True) as opened:
        collect(opened, results)
        with opened.reading() as connection:
            requested = study_rows(connection, "demo")[0].requested
        refused = {**requested, "recompute_modules": ["shared_experts"]}
        row = PlannedRow("f" * 20, "[shared_experts]", "mcore_cpu", 2, refused, status="rejected", reasons=["overlap"])
        with opened.writing() as connection:
            write_plan(connection, new_plan("demo", [row]))
        (group,) = compare(read(opened, "demo")).groups
    line = group.lines[-1]
    assert (line.text, line.label, line.decided.evidence) == ("shared_experts", "rejected", ("overlap",))
    assert "shared_experts: overlap" in footnotes(group)


def test_an_attempt_that_was_cut_short_is_said_to_be(tmp_path):
    results = tmp_path / "results"
    write_study(results, "cut", [[], ["mlp"]], batch="job-1")
    for path in (results / "runs").glob("*/*"):
        if json.loads((path / "spec.json").read_text())["config"]["recompute_modules"]:
            for rank in path.glob("rank-*.json"):
                rank.unlink()
            record = json.loads((path / "attempt.json").read_text())
            (path / "attempt.json").write_text(json.dumps(record | {"cut_short": "driver_lost", "exit_codes": {}}))
    with open_store(results / "store.sqlite", write=True) as opened:
        collect(opened, results)
        rows = read(opened, "cut")
    outcomes = {row.name: (row.label, row.outcome_text) for row in rows}
    assert (None, "cut short") in outcomes.values()
    assert ("pass", None) in outcomes.values()
