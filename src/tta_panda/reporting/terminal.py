"""Result tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tta_panda.experiments.results import Result
from tta_panda.reporting.cells import grid_of
from tta_panda.reporting.grids import METHODS_PER_GRID, Cell, Grid, result_grids, verdicts
from tta_panda.reporting.summary import summary_grids
from tta_panda.reporting.tables import ResultTable

_MOST_COLUMNS_WITH_SPREAD, _MOST_COLUMNS_WITH_SPACE = 7, 10

_STYLES = {"": "", "better": "green", "worse": "red", "missing": "dim"}
_PAPER_STYLE = "blue"
_PAPER_ROW = "  paper"


def print_results(console: Console, table: ResultTable) -> None:
    """Accuracy and prediction bias, and what Panda changed; of many methods the means, with all else in the report."""
    console.print(Text(f"\n{table.setting}", style="bold"))
    many = len({series.method.base for series in table.series}) > METHODS_PER_GRID
    for grid in summary_grids(table) if many else result_grids(table):
        _print_grid(console, grid)
    console.print()
    if not many:
        for line in verdicts(table):
            console.print(Text(line))


def _print_grid(console: Console, grid: Grid) -> None:
    """Its title over its rows; a title of the table itself would be broken to the table's width."""
    console.print(Text(f"\n{grid.title}", style="bold"))
    wide = len(grid.headers) > _MOST_COLUMNS_WITH_SPREAD
    for piece in _pieces_that_fit(console, grid) if wide else [grid]:
        console.print(_rich_table(piece, wide))


def _pieces_that_fit(console: Console, grid: Grid) -> list[Grid]:
    """A wide table as it is, or cut into several with fewer columns: numbers are never cut."""
    names = [word for row in grid.rows for word in (row.group, _PAPER_ROW, *row.name.split())]
    columns = [_least_width(grid, index) for index in range(len(grid.headers))]
    grouped = any(row.group for row in grid.rows)
    needed = max(map(len, names), default=0) * (1 + grouped) + sum(columns) + sum(_padding(grid)) * (len(columns) + 2)
    half = len(grid.headers) // 2
    if needed <= console.width or not half:
        return [grid]
    parts = [slice(half), slice(half, None)]
    pieces = [
        grid._replace(headers=grid.headers[part], rows=[row._replace(cells=row.cells[part]) for row in grid.rows])
        for part in parts
    ]
    return [fitting for piece in pieces for fitting in _pieces_that_fit(console, piece)]


def _padding(grid: Grid) -> tuple[int, int]:
    """Right and left of a column."""
    return (1, 1) if len(grid.headers) <= _MOST_COLUMNS_WITH_SPACE else (1, 0)


def _least_width(grid: Grid, index: int) -> int:
    """What a column needs if its title is broken at spaces, and its numbers are not broken."""
    return max(map(len, [*grid.headers[index].split(), *(row.cells[index].text for row in grid.rows)]), default=0)


def _rich_table(grid: Grid, wide: bool) -> Table:
    right, left = _padding(grid)
    table = Table(box=None, pad_edge=False, padding=(0, right, 0, left))
    grouped = any(row.group for row in grid.rows)
    for _ in range(1 + grouped):
        table.add_column(no_wrap=not wide)
    for index, header in enumerate(grid.headers):
        # Where room is short, titles and in wide tables names are broken at spaces, and numbers never.
        table.add_column(header, justify="right", min_width=_least_width(grid, index) if wide else None)
    for row in grid.rows:
        group = [Text(row.group, style="dim")] * grouped
        cells = [Text(cell.text, style=_STYLES[cell.kind]) if wide else _with_all(cell) for cell in row.cells]
        table.add_row(*group, Text(row.name), *cells, style="bold" if row.kind == "mean" else None)
        if wide and any(cell.paper for cell in row.cells):  # no room beside the numbers
            printed = [Text(cell.paper.text if cell.paper else "") for cell in row.cells]
            table.add_row(*[Text()] * grouped, Text(_PAPER_ROW), *printed, style=_PAPER_STYLE)
    return table


def _with_all(cell: Cell) -> Text:
    """The number with its spread, and what the paper printed."""
    text = Text(cell.full, style=_STYLES[cell.kind])
    return text.append(f" [paper {cell.paper.full}]", style=_PAPER_STYLE) if cell.paper else text


def print_experiment(console: Console, title: str, result: Result) -> None:
    """The tables of an experiment; wide ones without the spread over seeds, which is in the files."""
    console.print(Text(f"\n{title}", style="bold"))
    for table in result.tables:
        _print_grid(console, grid_of(table))
        if table.note:
            console.print(Text(table.note, style="dim"))
    for note in result.notes:
        console.print(Text(note, style="dim"))
