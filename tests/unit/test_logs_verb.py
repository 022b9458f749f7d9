"""`logs` and `query --json` as a user or a program sees them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import recorded

from orchestrator.cli.main import main
from orchestrator.cli.query import told_apart
from orchestrator.records import layout
from orchestrator.report.text import visible_lines


@pytest.fixture(autouse=True)
def _demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_DB", raising=False)
    layout.make_private_dir(tmp_path / "results")
    recorded.demo(tmp_path / "results")


def _ran(tmp_path: Path) -> Path:
    return sorted((tmp_path / "results" / "runs").glob("*/*"))[0]


def test_a_log_cannot_act_on_a_terminal_and_is_raw_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = _ran(tmp_path)
    layout.rank_log(attempt, 0).write_bytes(b"\x1b]0;title\x07\x1b[31mred\tx\r\nnext\n")
    words = ["logs", attempt.parent.name, "--rank", "0"]
    assert main(words) == 0
    assert "\x1b[31mred\tx" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(words) == 0
    assert capsys.readouterr().out == "\\x1b]0;title\\x07\\x1b[31mred\tx\\r\nnext\n"


def test_lines_and_tabs_stay_as_they_are() -> None:
    assert visible_lines("a\tb\n\u202ec\n") == "a\tb\n\\u202ec\n"


@pytest.mark.parametrize("rank", ["9", "-1"])
def test_a_rank_that_a_trial_has_not_is_refused(rank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", _ran(tmp_path).parent.name, "--rank", rank]) == 2
    assert f"has no rank {rank}: it has" in capsys.readouterr().err


def test_a_number_of_lines_below_zero_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", _ran(tmp_path).parent.name, "--lines", "-5"]) == 2
    assert "--lines" in capsys.readouterr().err


def test_json_of_a_query_is_json_and_keeps_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert main(["query", "--json", "select 1e999 as x, 1 as a, 2 as a, 3 as a_2, -1e999 as a"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == [{"x": "inf", "a": 1, "a_3": 2, "a_2": 3, "a_4": "-inf"}]
    assert told_apart(["n", "n", "m"]) == ["n", "n_2", "m"]
