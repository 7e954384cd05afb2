"""Folders of records as tables that can be sorted, coloured and compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tta_panda.evaluation.record import RunRecord
from tta_panda.evaluation.store import RunStore
from tta_panda.reporting.cells import ACCURACY, BIAS, CALIBRATION, LIKELIHOOD, Cell
from tta_panda.reporting.comparison import Comparison, corruption_table, read_comparisons
from tta_panda.reporting.tables import Column, Row, Table

HEAT = "0, 114, 178"
COLOURS = {"better": "0, 158, 115", "worse": "213, 94, 0"}


@dataclass(frozen=True)
class Folder:
    """The records of a folder, setting by setting."""

    comparisons: dict[str, Comparison]
    _tables: dict[str, dict[str, Table]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> Folder:
        _, comparisons = read_comparisons(RunStore(Path(path).expanduser()))
        return cls({each.title: each for each in comparisons})

    def tables(self, title: str) -> dict[str, Table]:
        """The tables of one setting, made once, by their own titles: corruption by method first."""
        if title not in self._tables:
            comparison = self.comparisons[title]
            by_corruption = [corruption_table(comparison, each) for each in (ACCURACY, BIAS, CALIBRATION, LIKELIHOOD)]
            others = [table for table in comparison.tables() if table.rows_are != "corruption"]
            self._tables[title] = {table.title: table for table in (*by_corruption, *others)}
        return self._tables[title]

    def records(self, title: str, corruption: str, label: str) -> list[RunRecord]:
        """The records behind a cell, one for each seed."""
        comparison = self.comparisons[title]
        found = (method for method in comparison.methods if comparison.label(method) == label)
        return [record for method in found for record in comparison.records(method, corruption)]


def difference(table: Table, other: Table) -> Table:
    """What is more in `table` than in `other`, for the rows and columns that both have."""
    places = {column.title: place for place, column in enumerate(other.columns)}
    rows = {row.name: row for row in other.rows}
    shared = [place for place, column in enumerate(table.columns) if column.title in places and not column.is_delta]
    columns = [replace(table.columns[place], is_delta=True) for place in shared]

    def subtracted(row: Row) -> Row:
        theirs = rows[row.name].cells
        return row._replace(cells=[row.cells[p] - theirs[places[table.columns[p].title]] for p in shared])

    return replace(table, columns=columns, rows=[subtracted(row) for row in table.rows if row.name in rows])


def as_grid(table: Table) -> dict[str, Any]:
    """Headers, numbers to sort by, and their texts and colours, as a data frame in the browser takes them."""
    levels = [cell.value for row in table.rows for cell in _levels(table, row) if cell.value is not None]
    span = min(levels, default=0.0), max(levels, default=0.0)
    texts = [[row.name, *(column.full_text(cell) for column, cell in table.items(row))] for row in table.rows]
    styling = [["", *(_style(column, cell, table, span) for column, cell in table.items(row))] for row in table.rows]
    return {
        "headers": [table.rows_are, *(column.title for column in table.columns)],
        "data": [[row.name, *(cell.value for cell in row.cells)] for row in table.rows],
        "metadata": {"display_value": texts, "styling": styling},
    }


def _levels(table: Table, row: Row) -> list[Cell]:
    """The cells of a row that are no differences."""
    return [cell for column, cell in table.items(row) if not column.is_delta]


def _style(column: Column, cell: Cell, table: Table, span: tuple[float, float]) -> str:
    """The colour of a cell: of differences by what is better, of numbers by corruption by how large they are."""
    if column.is_delta:
        kind = column.kind(cell)
        return f"background-color: rgba({COLOURS[kind]}, 0.35)" if kind in COLOURS else ""
    least, greatest = span
    if table.rows_are != "corruption" or cell.value is None or greatest == least:
        return ""
    return f"background-color: rgba({HEAT}, {0.6 * (cell.value - least) / (greatest - least):.2f})"
