from __future__ import annotations

import re

import pytest
from measured_rows import row

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.published_tables import published_rows, published_tables, rows_of_table
from orchestrator.records.jsonfile import FormatError
from orchestrator.report.compare import delta_text, group_table


def only_group(table):
    (group,) = compare(published_rows(table)).groups
    return group


def test_all_three_tables_come_with_every_row():
    assert {table: len(published_rows(table)) for table in published_tables()} == {
        "moonlight-16b": 6,
        "nemotron-3-nano": 6,
        "llama3-70b-sft": 5,
    }


def test_both_delta_columns_of_the_first_table_come_out_as_printed():
    for line in only_group("moonlight-16b").lines:
        printed = line.runs[0].source["entry"]["printed"]
        assert ("control" if line.is_control else delta_text(line.peak_delta)) == printed["peak_vs_control"]
        assert ("control" if line.is_control else delta_text(line.time_delta)) == printed["time_vs_control"]


def test_the_second_table_keeps_outcomes_gaps_and_failures():
    lines = {line.text: line for line in only_group("nemotron-3-nano").lines}
    assert [lines[name].decided.outcome_text for name in ("[]", "core_attn", "moe")] == [
        "OOM after iteration 1",
        "OOM in iteration 1",
        "completed 12 steps",
    ]
    assert lines["core_attn"].peak is None
    assert lines["moe_act"].peak.allocated == 62_103_000_000
    assert lines["[]"].decided.evidence
    assert lines["moe, layernorm"].one_label[0].peak.fraction == pytest.approx(-0.0157, abs=5e-5)
    assert lines["moe, layernorm"].one_label[0].time.fraction == pytest.approx(0.0307, abs=5e-5)
    assert all(line.peak_delta is None for line in lines.values())


def test_the_third_table_gives_no_outcome_that_its_source_does_not():
    lines = only_group("llama3-70b-sft").lines
    assert [line.label for line in lines] == ["OOM-unknown", None, None, "OOM-unknown", None]
    assert all(line.peak_delta is None and line.time_delta is None for line in lines)


def test_published_rows_never_share_a_table_with_each_other():
    rows = [row for table in published_tables() for row in published_rows(table)]
    assert len(compare(rows).groups) == 3


def test_published_rows_never_share_a_delta_with_measured_ones():
    comparison = compare([*published_rows("moonlight-16b"), row(), row(["moe_act"])])
    assert [len(group.lines) for group in comparison.groups] == [2, 6]
    assert all(len({run.origin for line in group.lines for run in line.runs}) == 1 for group in comparison.groups)


@pytest.mark.parametrize(
    "broken", [[], {}, {"table": "x", "rows": [{}], "schema": 1}, {"table": "x", "rows": [], "schema": 2}]
)
def test_a_file_that_is_no_table_is_refused_by_name(broken):
    with pytest.raises(FormatError, match="here"):
        rows_of_table(broken, "here")


ROW = {"modules": ["moe"], "peak_gb": 3, "step_ms": 5, "label": "pass"}
TABLE = {"schema": 1, "table": "t", "peak": {"scope": "all_ranks"}}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"settings": 7}, "t.json.settings: expected an object, got int"),
        ({"peak": {"scope": "nope"}}, "t.json.peak.scope: 'nope' is not one of"),
        ({"peak": None}, "row 1: it has a peak, and the table's `peak` does not say its scope"),
        ({"settings": {"parallelism": {"world_size": "8"}}}, "world_size: '8' is no whole number"),
        ({"rows": [{**ROW, "step_ms": "fast"}]}, "row 1.step_ms: expected float, got str"),
        ({"rows": [{**ROW, "step_ms": "nan"}]}, "row 1.step_ms: nan is no figure"),
        ({"rows": [ROW, {**ROW, "peak_gb": -1}]}, "row 2.peak_gb: -1 is no figure"),
        ({"rows": [{**ROW, "modules": 5}]}, "row 1.modules: expected a list, got int"),
        ({"rows": [{**ROW, "modules": None}]}, "row 1: it has no modules"),
        ({"rows": [7]}, "row 1: expected an object, got int"),
    ],
)
def test_a_table_of_somebody_else_is_refused_with_the_field_that_is_wrong(table, said):
    with pytest.raises(FormatError, match=re.escape(said)):
        rows_of_table({"rows": [ROW], **TABLE, **table}, "t.json")


def test_a_table_of_somebody_else_with_the_least_of_fields_is_read():
    (row,) = rows_of_table({"rows": [ROW], **TABLE}, "t.json")
    assert (row.label, row.peak.allocated, row.step_ms) == ("pass", 3_000_000_000, 5)


def test_compare_says_an_outcome_in_the_words_of_every_other_verb_and_its_sources_beside_it():
    table = group_table(only_group("nemotron-3-nano"))
    place = [column.header for column in table.columns].index("label")
    assert [row[place] for row in table.rows][:2] == [
        "OOM-unknown (OOM after iteration 1)",
        "OOM-unknown (OOM in iteration 1)",
    ]
