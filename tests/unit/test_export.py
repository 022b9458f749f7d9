from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from measured_rows import row

from orchestrator.analysis.command import Commands
from orchestrator.analysis.comparison import compare
from orchestrator.analysis.diagnosis import diagnose
from orchestrator.analysis.failure_rules import FAILURE_TABLE
from orchestrator.analysis.further_rules import FURTHER_RULES
from orchestrator.analysis.published_tables import published_rows
from orchestrator.analysis.recommend import recommend
from orchestrator.report.compare import print_comparison
from orchestrator.report.diagnose import print_findings
from orchestrator.report.export_card import card_yaml
from orchestrator.report.export_markdown import code, escaped, markdown
from orchestrator.report.export_rows import FIELDS, records
from orchestrator.report.export_table import csv_text, parquet_bytes
from orchestrator.report.recommend import print_recommendation

HOSTILE = [
    '=HYPERLINK("http://x")',
    "\x1b[31mred\x1b[0m",
    "[bold]x[/bold]",
    "'; DROP TABLE trials; --",
    "a|b`c",
    "\u202eevil",
]


def cells(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_has_a_row_a_run_with_bytes_and_fractions():
    first, second = cells(csv_text(records(compare([row(), row(["moe"], peak=900_000_000, step_ms=110.0)]))))
    assert (first["modules"], first["control"], first["time_delta"]) == ("[]", "True", "")
    assert second["peak_allocated_bytes"] == "900000000"
    assert float(second["time_delta"]) == pytest.approx(0.1)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_text_of_a_csv_can_be_a_formula(start):
    (shown,) = cells(csv_text(records(compare([row(study=f"{start}1+1")]))))
    assert shown["study"].startswith("'")


def test_numbers_of_a_csv_stay_numbers():
    rows = cells(csv_text(records(compare([row(), row(["moe"], step_ms=50.0)]))))
    assert float(rows[1]["time_delta"]) == pytest.approx(-0.5)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_shown_as_text_everywhere(hostile):
    comparison = compare([row(name=hostile, study=hostile), row([hostile], evidence=(hostile,))])
    stream = io.StringIO()
    print_comparison(comparison, stream)
    for recommendation in recommend(comparison, target=10**12):
        print_recommendation(recommendation, stream)
    print_findings(diagnose(comparison, (*FAILURE_TABLE, *FURTHER_RULES), Commands(hostile, (hostile,))), stream)
    for text in (stream.getvalue(), csv_text(records(comparison)), markdown(comparison), card_yaml(comparison)):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert text.isprintable() or {c for c in text if not c.isprintable()} <= {"\n", "\r"}


def test_parquet_keeps_types_and_gaps():
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = parquet.read_table(pyarrow.BufferReader(parquet_bytes(records(compare([row(), row(["moe"])])))))
    assert table.column_names == [field.name for field in FIELDS]
    assert table.column("peak_allocated_bytes").to_pylist() == [1_000_000_000, 1_000_000_000]
    assert table.column("time_delta").to_pylist()[0] is None


def test_markdown_of_the_published_table_is_the_guides_own():
    lines = markdown(compare(published_rows("moonlight-16b"))).splitlines()
    assert lines[2:5] == [
        "| Selective modules | Peak allocated (GB) | Step time (ms) | TFLOP/s/GPU | Allocated vs `[]` | Time vs `[]` |",
        "|---|---:|---:|---:|---:|---:|",
        "| `[]` | 36.618 | 457.18 | 77.50 | control | control |",
    ]
    assert lines[7] == "| `mla_up_proj`, `mlp` | 35.917 | 496.73 | 71.50 | -1.91% | +8.65% |"


def test_markdown_has_outcomes_where_not_all_passed():
    text = markdown(compare([row(), row(["moe"], label="OOM-bwd", step_ms=None)]))
    assert "| Selective modules | Outcome |" in text
    assert "| `moe` | OOM-bwd | 1.000 | - | - | - | - |" in text


@given(st.text(max_size=12))
def test_no_text_breaks_out_of_a_markdown_cell(text):
    for shown in (code(text), escaped(text)):
        assert "\n" not in shown
        assert "|" not in shown.replace("\\|", "")


def test_a_skill_card_of_the_published_table_has_its_figures():
    (entry,) = yaml.safe_load(card_yaml(compare(published_rows("moonlight-16b"))))["measured_results"]
    assert entry["parallelism"] == "TP2_PP1_CP1_EP8"
    assert (entry["gpus"], entry["seq_length"], entry["mbs"], entry["gbs"], entry["steps"]) == (8, 4096, 1, 4, 20)
    assert entry["revisions"]["bridge"] == "600d069b824dd5ce50367a311a5a3244478faf22"
    assert entry["experiments"][0] == {
        "name": "empty_control",
        "recompute_modules": [],
        "peak_mem_gb": 36.618,
        "step_time_ms": 457.18,
        "tflops_per_gpu": 77.5,
    }
    assert entry["experiments"][4] | {"name": ""} == {
        "name": "",
        "recompute_modules": ["moe_act"],
        "peak_mem_gb": 35.941,
        "peak_mem_vs_control_pct": -1.85,
        "step_time_ms": 466.26,
        "step_time_vs_control_pct": 1.99,
        "tflops_per_gpu": 75.5,
    }


def test_a_skill_card_says_where_a_candidate_ended():
    text = card_yaml(compare([row(), row(["moe"], label="OOM-bwd"), replace(row(["mlp"]), label=None)]))
    experiments = yaml.safe_load(text)["measured_results"][0]["experiments"]
    assert {item["name"]: item.get("status") for item in experiments} == {
        "empty_control": None,
        "moe": "OOM-bwd",
        "mlp": "not recorded",
    }


def test_a_skill_card_of_cpu_rows_names_no_gpu():
    (entry,) = yaml.safe_load(card_yaml(compare([row()])))["measured_results"]
    assert entry["device"] == "cpu"
    assert "gpus" not in entry
    assert "no GPU measurements" in entry["comparison_limitations"]
