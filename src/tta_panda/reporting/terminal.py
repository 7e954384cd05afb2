"""Print tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tta_panda.escapes import printable
from tta_panda.reporting.cells import Cell
from tta_panda.reporting.tables import Column, Row, Table, spread_notes

_MAX_COLUMNS_WITH_SPREAD, _MAX_COLUMNS_WITH_SPACE = 7, 10

_STYLES = {"": "", "better": "green", "worse": "red", "missing": "dim"}
_PAPER_STYLE = "blue"
_PAPER_ROW = "  paper"


def print_tables(console: Console, title: str, tables: Sequence[Table], notes: Sequence[str] = ()) -> None:
    """Print tables and notes under a title; wide tables omit the spread over seeds, which is in the files."""
    console.print(Text(f"\n{printable(title)}", style="bold"))
    for table in tables:
        _print_table(console, table)
    if spreads := spread_notes(table for table in tables if not _is_wide(table)):
        console.print(Text(f"\n{' '.join(spreads)}", style="dim"))
    if notes:
        console.print()
    for note in notes:
        console.print(Text(printable(note)))


def _is_wide(table: Table) -> bool:
    return len(table.columns) > _MAX_COLUMNS_WITH_SPREAD


def _print_table(console: Console, table: Table) -> None:
    """Print the title, rows and note of a table; rich would wrap its own title to the width of the table."""
    console.print(Text(f"\n{printable(table.title)}", style="bold"))
    wide = _is_wide(table)
    for piece in _split_to_width(console, table) if wide else [table]:
        console.print(_rich_table(piece, wide))
    if table.note:
        console.print(Text(printable(table.note), style="dim"))


def _split_to_width(console: Console, table: Table) -> list[Table]:
    """Cut a wide table into several with fewer columns if needed; a difference stays next to its number."""
    names = [word for row in table.rows for word in (row.group, _PAPER_ROW, *printable(row.name).split())]
    columns = [_min_width(table, index) for index in range(len(table.columns))]
    needed = max(map(len, names), default=0) * (1 + table.is_grouped) + sum(columns)
    needed += sum(_padding(table)) * (len(columns) + 2)
    near_half = range(len(table.columns) // 2, 0, -1)
    half = next((index for index in near_half if not table.columns[index].is_delta), 0)
    if needed <= console.width or not half:
        return [table]
    pieces = (table.cut(slice(half)), table.cut(slice(half, None)))
    return [fitting for piece in pieces for fitting in _split_to_width(console, piece)]


def _padding(table: Table) -> tuple[int, int]:
    """Padding to the right and left of a column."""
    return (1, 1) if len(table.columns) <= _MAX_COLUMNS_WITH_SPACE else (1, 0)


def _min_width(table: Table, index: int) -> int:
    """The width of a column whose title wraps at spaces, and whose numbers do not wrap."""
    column = table.columns[index]
    words = printable(column.title).split()
    return max(map(len, [*words, *(column.text(row.cells[index]) for row in table.rows)]), default=0)


def _rich_table(table: Table, wide: bool) -> RichTable:
    right, left = _padding(table)
    rich = RichTable(box=None, pad_edge=False, padding=(0, right, 0, left))
    for _ in range(1 + table.is_grouped):
        rich.add_column(no_wrap=not wide)
    for index, column in enumerate(table.columns):
        # If space is short, titles and, in wide tables, names wrap at spaces; numbers never wrap.
        width = _min_width(table, index) if wide else None
        rich.add_column(Text(printable(column.title)), justify="right", min_width=width)
    for row in table.rows:
        _add_row(rich, table, row, wide)
    return rich


def _add_row(rich: RichTable, table: Table, row: Row, wide: bool) -> None:
    group = [Text(printable(row.group), style="dim")] * table.is_grouped
    cells = [_cell_text(column, cell, wide) for column, cell in table.items(row)]
    rich.add_row(*group, Text(printable(row.name)), *cells, style="bold" if row.is_mean else None)
    if wide and any(cell.paper for cell in row.cells):  # no room next to the numbers
        printed = [Text(column.text(cell.paper) if cell.paper else "") for column, cell in table.items(row)]
        rich.add_row(*[Text()] * table.is_grouped, Text(_PAPER_ROW), *printed, style=_PAPER_STYLE)


def _cell_text(column: Column, cell: Cell, wide: bool) -> Text:
    """Format a number; in narrow tables, with its spread and the paper's number."""
    style = _STYLES[column.kind(cell)]
    if wide:
        return Text(column.text(cell), style=style)
    text = Text(column.full_text(cell), style=style)
    return text.append(f" [paper {column.full_text(cell.paper)}]", style=_PAPER_STYLE) if cell.paper else text
