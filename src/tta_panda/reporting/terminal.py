"""Tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tta_panda.escapes import printable
from tta_panda.reporting.text import MARGIN_NOTE, TextCell, TextTable, to_text
from tta_panda.results.figure import Result

_MOST_COLUMNS_WITH_SPREAD, _MOST_COLUMNS_WITH_SPACE = 7, 10

_STYLES = {"": "", "better": "green", "worse": "red", "missing": "dim"}
_PAPER_STYLE = "blue"
_PAPER_ROW = "  paper"


def print_result(console: Console, title: str, result: Result) -> None:
    """Tables and notes under a title; wide tables without the spread over seeds, which is in the files."""
    console.print(Text(f"\n{printable(title)}", style="bold"))
    for table in result.tables:
        _print_table(console, to_text(table))
        if table.note:
            console.print(Text(printable(table.note), style="dim"))
    with_spread = [table for table in result.tables if len(table.columns) <= _MOST_COLUMNS_WITH_SPREAD]
    if any(cell.margin is not None for table in with_spread for row in table.rows for cell in row.cells):
        console.print(Text(f"\n{MARGIN_NOTE}", style="dim"))
    if result.notes:
        console.print()
    for note in result.notes:
        console.print(Text(printable(note)))


def _print_table(console: Console, table: TextTable) -> None:
    """Its title over its rows; a title of the rich table itself would be broken to the table's width."""
    console.print(Text(f"\n{table.title}", style="bold"))
    wide = len(table.headers) > _MOST_COLUMNS_WITH_SPREAD
    for piece in _pieces_that_fit(console, table) if wide else [table]:
        console.print(_rich_table(piece, wide))


def _pieces_that_fit(console: Console, table: TextTable) -> list[TextTable]:
    """A wide table as it is, or cut into several with fewer columns: numbers are never cut."""
    names = [word for row in table.rows for word in (row.group, _PAPER_ROW, *row.name.split())]
    columns = [_least_width(table, index) for index in range(len(table.headers))]
    needed = max(map(len, names), default=0) * (1 + table.is_grouped) + sum(columns)
    needed += sum(_padding(table)) * (len(columns) + 2)
    half = len(table.headers) // 2
    if needed <= console.width or not half:
        return [table]
    pieces = [
        table._replace(headers=table.headers[part], rows=[row._replace(cells=row.cells[part]) for row in table.rows])
        for part in (slice(half), slice(half, None))
    ]
    return [fitting for piece in pieces for fitting in _pieces_that_fit(console, piece)]


def _padding(table: TextTable) -> tuple[int, int]:
    """Right and left of a column."""
    return (1, 1) if len(table.headers) <= _MOST_COLUMNS_WITH_SPACE else (1, 0)


def _least_width(table: TextTable, index: int) -> int:
    """What a column needs if its title is broken at spaces, and its numbers are not broken."""
    return max(map(len, [*table.headers[index].split(), *(row.cells[index].text for row in table.rows)]), default=0)


def _rich_table(table: TextTable, wide: bool) -> RichTable:
    right, left = _padding(table)
    rich = RichTable(box=None, pad_edge=False, padding=(0, right, 0, left))
    for _ in range(1 + table.is_grouped):
        rich.add_column(no_wrap=not wide)
    for index, header in enumerate(table.headers):
        # Where room is short, titles and in wide tables names are broken at spaces, and numbers never.
        rich.add_column(Text(header), justify="right", min_width=_least_width(table, index) if wide else None)
    for row in table.rows:
        group = [Text(row.group, style="dim")] * table.is_grouped
        cells = [Text(cell.text, style=_STYLES[cell.kind]) if wide else _complete(cell) for cell in row.cells]
        rich.add_row(*group, Text(row.name), *cells, style="bold" if row.is_mean else None)
        if wide and any(cell.paper for cell in row.cells):  # no room beside the numbers
            printed = [Text(cell.paper.text if cell.paper else "") for cell in row.cells]
            rich.add_row(*[Text()] * table.is_grouped, Text(_PAPER_ROW), *printed, style=_PAPER_STYLE)
    return rich


def _complete(cell: TextCell) -> Text:
    """The number with its spread, and what the paper printed."""
    text = Text(cell.full, style=_STYLES[cell.kind])
    return text.append(f" [paper {cell.paper.full}]", style=_PAPER_STYLE) if cell.paper else text
