"""A table on a terminal, or as aligned plain lines where it is piped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Column:
    """A header, and whether its cells stand right."""

    header: str
    right: bool = False


@dataclass(frozen=True)
class Table:
    """Cells that are already plain text (see `text.plain`)."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def print_table(table: Table, stream: TextIO) -> None:
    """With lines and wrapping on a terminal; on a pipe one row a line, never cut."""
    if stream.isatty():
        _print_rich(table, stream)
    else:
        for line in plain_lines(table):
            print(line, file=stream)


def plain_lines(table: Table) -> list[str]:
    """Title, header and rows in aligned columns, two spaces apart."""
    headers = [column.header for column in table.columns]
    cells: Sequence[Sequence[str]] = [headers, *table.rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(headers))]
    lines = [table.title] if table.title else []
    for row in cells:
        parts = [
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(row, widths, table.columns, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def _print_rich(table: Table, stream: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    # Text objects, never strings: rich reads `[moe_act]` in a string as markup.
    drawn = RichTable(title=Text(table.title, style="bold"), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        drawn.add_column(Text(column.header), justify="right" if column.right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(file=stream, highlight=False, markup=False, emoji=False).print(drawn)
