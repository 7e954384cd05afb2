"""Tables as text in rows and columns, ready for a terminal, a page or a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tta_panda.escapes import printable
from tta_panda.results.table import Cell, Column, Table

PLUS_MINUS = "±"
MARGIN_NOTE = (
    "The ± of a difference (Δ) is half of its 95 % confidence interval: paired by seed, or for accuracies of one seed "
    "by tenth of the stream, which has the same images for both."
)


class TextCell(NamedTuple):
    text: str
    kind: Literal["", "better", "worse", "missing"] = ""
    spread: str = ""
    """The s.d. over seeds, or the margin of a difference, as "± 0.1"."""
    paper: TextCell | None = None
    """What the paper printed for it."""

    @property
    def full(self) -> str:
        """The number with its spread."""
        return f"{self.text} {self.spread}" if self.spread else self.text


class TextRow(NamedTuple):
    name: str
    cells: Sequence[TextCell]
    group: str = ""
    is_mean: bool = False


class TextTable(NamedTuple):
    title: str
    rows_are: str
    headers: Sequence[str]
    rows: Sequence[TextRow]

    @property
    def is_grouped(self) -> bool:
        return any(row.group for row in self.rows)


def to_text(table: Table) -> TextTable:
    rows = []
    for row in table.rows:
        cells = [_text(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
        rows.append(TextRow(printable(row.name), cells, printable(row.group), row.is_mean))
    headers = [printable(column.title) for column in table.columns]
    return TextTable(printable(table.title), printable(table.rows_are), headers, rows)


def _text(cell: Cell, column: Column) -> TextCell:
    paper = None
    if cell.paper is not None:
        paper = TextCell(number(cell.paper.value, column), spread=spread(cell.paper.sd, column))
    if cell.value is None:
        return TextCell(cell.why_empty, "missing", paper=paper)
    shown = spread(cell.margin if column.is_delta else cell.sd, column)
    return TextCell(number(cell.value, column), _kind(cell, column), shown, paper)


def _kind(cell: Cell, column: Column) -> Literal["", "better", "worse"]:
    """Whether a difference is for the better; none where it is within its margin, or +0.0 as shown."""
    difference = round(cell.value or 0.0, column.decimals)
    if not column.is_delta or not column.better or difference == 0:
        return ""
    if cell.value is None or cell.margin is None or abs(cell.value) <= cell.margin:
        return ""
    return "better" if (difference > 0) == (column.better == "higher") else "worse"


def number(value: float, column: Column) -> str:
    value = round(value, column.decimals) + 0.0  # no negative zero
    return f"{value:+.{column.decimals}f}" if column.is_delta else f"{value:.{column.decimals}f}"


def spread(width: float | None, column: Column) -> str:
    """A s.d. or margin as text, if there is any."""
    return "" if width is None else f"{PLUS_MINUS} {width:.{max(1, column.decimals)}f}"
