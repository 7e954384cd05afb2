"""Tables as text in rows and columns, ready for a terminal, a page or a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tta_panda.results.table import Cell, Column, Table

PLUS_MINUS = "±"


class TextCell(NamedTuple):
    text: str
    kind: Literal["", "better", "worse", "missing"] = ""
    spread: str = ""
    """The s.d. over seeds, as "± 0.1"."""
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
    rows = [
        TextRow(row.name, [_text(c, column) for c, column in zip(row.cells, table.columns, strict=True)], *row[2:])
        for row in table.rows
    ]
    return TextTable(table.title, table.rows_are, [column.title for column in table.columns], rows)


def _text(cell: Cell, column: Column) -> TextCell:
    paper = None
    if cell.paper is not None:
        paper = TextCell(number(cell.paper.value, column), spread=spread(cell.paper.sd, column))
    if cell.value is None:
        return TextCell(cell.why_empty, "missing", paper=paper)
    return TextCell(number(cell.value, column), _kind(cell.value, column), spread(cell.sd, column), paper)


def _kind(value: float, column: Column) -> Literal["", "better", "worse"]:
    """For differences, whether they are for the better; rounded as shown, so that +0.0 has no colour."""
    rounded = round(value, column.decimals)
    if not column.is_delta or not column.better or rounded == 0:
        return ""
    return "better" if (rounded > 0) == (column.better == "higher") else "worse"


def number(value: float, column: Column) -> str:
    value = round(value, column.decimals) + 0.0  # no negative zero
    return f"{value:+.{column.decimals}f}" if column.is_delta else f"{value:.{column.decimals}f}"


def spread(sd: float | None, column: Column) -> str:
    """The s.d. as text, if there is any."""
    return "" if sd is None else f"{PLUS_MINUS} {sd:.{max(1, column.decimals)}f}"
