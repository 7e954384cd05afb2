"""Result tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tta_panda.reporting.grids import METHODS_PER_GRID, Grid, result_grids, verdicts
from tta_panda.reporting.summary import summary_grids
from tta_panda.reporting.tables import ResultTable

_STYLES = {"": "", "better": "green", "worse": "red", "missing": "dim"}


def print_results(console: Console, table: ResultTable) -> None:
    """Accuracy and prediction bias, and what Panda changed; of many methods the means, with all else in the report."""
    console.print(Text(f"\n{table.setting}", style="bold"))
    many = len({series.method.base for series in table.series}) > METHODS_PER_GRID
    for grid in summary_grids(table) if many else result_grids(table):
        console.print()
        console.print(_rich_table(grid))
    console.print()
    if not many:
        for line in verdicts(table):
            console.print(Text(line))


def _rich_table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    grouped = any(row.group for row in grid.rows)
    for header in ("", *([""] if grouped else []), *grid.headers):
        table.add_column(header, justify="right" if header else "left", no_wrap=not header)
    for row in grid.rows:
        cells = [Text(cell.text, style=_STYLES[cell.kind]) for cell in row.cells]
        names = [*([Text(row.group, style="dim")] if grouped else []), Text(row.name)]
        table.add_row(*names, *cells, style="bold" if row.kind == "mean" else None)
    return table
