"""Tables on terminals of any width."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report.table import Column, Table, print_table

LONG = "published/nemotron-3-nano-of-a-very-long-name"
NUMBERS = ("123456.789 MB", "457.18", "1234567")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(table: Table, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    print_table(table, stream)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_long_name_is_folded_before_any_number_breaks(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (Column("study"), *(Column(name, right=True) for name in ("allocated", "step", "iterations")))
    text = shown(Table("", columns, ((LONG, *NUMBERS),)), width, monkeypatch)
    assert all(number in text for number in (*NUMBERS, "allocated", "step", "iterations"))
    assert "".join(line.split(" ")[0] for line in text.splitlines()[2:]) == LONG


@given(st.lists(st.text("abc ", min_size=1, max_size=30), min_size=1, max_size=5), st.integers(20, 120))
def test_no_line_is_wider_than_the_terminal(cells: list[str], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        text = shown(Table("", tuple(Column(f"c{n}") for n in range(len(cells))), (tuple(cells),)), width, patch)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
