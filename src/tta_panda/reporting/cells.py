"""Tables of experiments as text: numbers with their s.d., the paper's beside them, and what was not run."""

from __future__ import annotations

from tta_panda.experiments.results import Cell, Column, Table
from tta_panda.reporting.grids import Cell as TextCell
from tta_panda.reporting.grids import Grid, GridRow, make_cell

PLUS_MINUS = "±"


def number(value: float, column: Column) -> str:
    value = round(value, column.decimals) + 0.0  # no negative zero
    return f"{value:+.{column.decimals}f}" if column.is_delta else f"{value:.{column.decimals}f}"


def spread(sd: float | None, column: Column) -> str:
    """The s.d. as text, if there is any."""
    return "" if sd is None else f"{PLUS_MINUS} {sd:.{max(1, column.decimals)}f}"


def grid_of(table: Table) -> Grid:
    """The table as text for a terminal or a page."""
    rows = [
        GridRow(
            "mean" if row.is_mean else "first" if row.group else "",
            row.group,
            row.name,
            [text_cell(c, column) for c, column in zip(row.cells, table.columns, strict=True)],
        )
        for row in table.rows
    ]
    return Grid(table.title, [column.title for column in table.columns], rows, table.rows_are)


def text_cell(cell: Cell, column: Column) -> TextCell:
    paper = None
    if cell.paper is not None:
        paper = TextCell(number(cell.paper.value, column), spread=spread(cell.paper.sd, column))
    if cell.value is None:
        return TextCell(cell.why_empty, "missing", paper=paper)
    # Rounded as shown, so that a difference of nothing has no colour.
    kind = make_cell(cell.value, column.is_delta, column.decimals, column.better == "higher").kind
    return TextCell(number(cell.value, column), kind if column.better else "", spread(cell.sd, column), paper)
