"""A table on a terminal, or as aligned plain lines where it is piped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TextIO

ABSENT = "-"
_GAP = 2
_NARROWEST = 8


@dataclass(frozen=True)
class Column:
    """A header, whether its cells stand right, may break at spaces, and how soon a narrow terminal goes without it."""

    header: str
    right: bool = False
    wrap: bool = False
    spare: int = 0
    """0 is always shown; of the others, the largest goes first."""


@dataclass(frozen=True)
class Table:
    """Cells that are already plain text (see `text.plain`)."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def print_table(table: Table, stream: TextIO) -> None:
    """On a terminal with lines, and as many columns as fit; on a pipe every column, one row a line, never cut."""
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


def reordered(table: Table, order: Sequence[int]) -> Table:
    """The table with its columns in this order, by their places now."""
    rows = tuple(tuple(row[place] for place in order) for row in table.rows)
    return replace(table, columns=tuple(table.columns[place] for place in order), rows=rows)


def said_columns(table: Table) -> Table:
    """The table without the columns that may be spared and say nothing in any row."""
    return _only(table, _saying(table))


def without(table: Table, header: str) -> Table:
    """The table without the columns of that header."""
    return _only(table, [place for place, column in enumerate(table.columns) if column.header != header])


def fitted(table: Table, width: int) -> tuple[Table, list[str]]:
    """The table without columns that say nothing, or that a terminal of this width has no room for; the latter by name.

    Columns without a `spare` stay, however narrow the terminal.
    """
    kept = _saying(table)
    dropped: list[int] = []
    while sum(_least_width(table, place) + _GAP for place in kept) > width:
        spare = max((table.columns[place].spare, place) for place in kept)
        if not spare[0]:
            break
        kept.remove(spare[1])
        dropped.append(spare[1])
    return _only(table, kept), [table.columns[place].header for place in sorted(dropped)]


def _saying(table: Table) -> list[int]:
    return [
        place
        for place, column in enumerate(table.columns)
        if not column.spare or any(row[place] != ABSENT for row in table.rows)
    ]


def _only(table: Table, kept: Sequence[int]) -> Table:
    return replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
    )


def _least_width(table: Table, place: int) -> int:
    """Characters that no word of the column breaks in, or no cell where it may not wrap."""
    column, cells = table.columns[place], [row[place] for row in table.rows]
    words = column.header.split()
    pieces = [word for cell in cells for word in cell.split()] if column.wrap else cells
    return max(map(len, [*words, *pieces]), default=0)


def _widths(table: Table, room: int) -> list[int]:
    """The least width of each column, and what is left over for the columns that would use it, from the left.

    Where even that is too much, columns of text are folded, the widest first: a number in two pieces is no number.
    """
    places = range(len(table.columns))
    widths = [_least_width(table, place) for place in places]
    texts = [place for place in places if not table.columns[place].right]
    while texts and sum(widths) + _GAP * len(widths) - 1 > room:
        widest = max(texts, key=lambda place: widths[place])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    left = room - sum(widths) - _GAP * len(widths)
    for place in places:
        wish = max(len(text) for text in (table.columns[place].header, *(row[place] for row in table.rows)))
        more = max(0, min(left, wish - widths[place]))
        widths[place] += more
        left -= more
    return widths


def _print_rich(table: Table, stream: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    narrow, dropped = fitted(table, console.width)
    # Text objects, never strings: rich reads `[moe_act]` in a string as markup.
    if narrow.title:
        console.print(Text(narrow.title, style="bold"))
    drawn = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column, width in zip(narrow.columns, _widths(narrow, console.width), strict=True):
        drawn.add_column(Text(column.header), justify="right" if column.right else "left", width=width, overflow="fold")
    for row in narrow.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)
    if dropped:
        left_out = f"No room for: {', '.join(dropped)}. A wider terminal, a pipe or --json has them."
        console.print(Text(left_out, style="dim"))
