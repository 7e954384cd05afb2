"""Result tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tta_panda.reporting.grids import Grid, result_grids, verdicts
from tta_panda.reporting.tables import ResultTable

_STYLES = {"": "", "better": "green", "worse": "red", "missing": "dim"}


def print_results(console: Console, table: ResultTable) -> None:
    """Accuracy and prediction bias, and what Panda changed."""
    console.print(Text(f"\n{table.setting}", style="bold"))
    for grid in result_grids(table):
        console.print()
        console.print(_rich_table(grid))
    console.print()
    for line in verdicts(table):
        console.print(Text(line))


def _rich_table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for header in ("", "", *grid.headers):
        table.add_column(header, justify="right" if header else "left", no_wrap=not header)
    for row in grid.rows:
        cells = [Text(cell.text, style=_STYLES[cell.kind]) for cell in row.cells]
        table.add_row(Text(row.group, style="dim"), row.name, *cells, style="bold" if row.kind == "mean" else None)
    return table
