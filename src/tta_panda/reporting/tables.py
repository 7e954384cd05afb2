"""Tables: columns with the format of their cells, and rows of cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tta_panda.reporting.cells import Better, Cell, Metric

SD_NOTE = "The ± of a number is its standard deviation over seeds."
MARGIN_NOTE = (
    "The ± of a difference (Δ) is half of its 95 % confidence interval: Student's t over differences paired by seed."
)
ONE_SEED_NOTE = (
    "Differences (Δ) of a single seed have no ±: one seed does not show how much they vary. Run several: --seed 0-4."
)


@dataclass(frozen=True)
class Column:
    """The title of a column, and the format of its numbers."""

    title: str
    decimals: int = 1
    better: Better = ""
    is_delta: bool = False
    """Whether it is of differences, which are shown with sign and margin, and coloured if they exceed the margin."""

    @classmethod
    def of(cls, metric: Metric, title: str) -> Column:
        return cls(title, metric.decimals, metric.better)

    @classmethod
    def delta(cls, metric: Metric, title: str = "Δ") -> Column:
        return cls(title, metric.decimals, metric.better, is_delta=True)

    def number(self, value: float) -> str:
        value = round(value, self.decimals) + 0.0  # no negative zero
        return f"{value:+.{self.decimals}f}" if self.is_delta else f"{value:.{self.decimals}f}"

    def text(self, cell: Cell) -> str:
        """The number, or the reason why there is none."""
        return cell.why_empty if cell.value is None else self.number(cell.value)

    def spread(self, cell: Cell) -> str:
        """The s.d. over seeds or the margin of a difference as "± 0.1", if there is one."""
        width = cell.margin if self.is_delta else cell.sd
        return "" if width is None else f"± {width:.{max(1, self.decimals)}f}"

    def full_text(self, cell: Cell) -> str:
        """The number with its spread."""
        return f"{self.text(cell)} {self.spread(cell)}".rstrip()

    def kind(self, cell: Cell) -> Literal["", "better", "worse", "missing"]:
        """Classify a difference as better or worse; as neither if it is within its margin, or shown as zero."""
        if cell.value is None:
            return "missing"
        difference = round(cell.value, self.decimals)
        if not self.is_delta or not self.better or difference == 0:
            return ""
        if cell.margin is None or abs(cell.value) <= cell.margin:
            return ""
        return "better" if (difference > 0) == (self.better == "higher") else "worse"


class Row(NamedTuple):
    name: str
    cells: Sequence[Cell]
    group: str = ""
    """Name of the group of rows that begins here."""
    is_mean: bool = False


@dataclass(frozen=True)
class Table:
    """Rows and columns of numbers."""

    title: str
    rows_are: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    of_paper: bool = False
    """Whether all numbers are the paper's, of another model and other data."""
    name: str = ""
    """Suffix of its file names, if a section has several tables."""

    @property
    def is_grouped(self) -> bool:
        return any(row.group for row in self.rows)

    def items(self, row: Row) -> Iterator[tuple[Column, Cell]]:
        """The cells of a row, each with its column."""
        return zip(self.columns, row.cells, strict=True)

    def with_column(self, column: Column, cells: Sequence[Cell]) -> Table:
        """The table with one more column, at the end."""
        rows = [row._replace(cells=[*row.cells, cell]) for row, cell in zip(self.rows, cells, strict=True)]
        return replace(self, columns=[*self.columns, column], rows=rows)

    def cut(self, part: slice) -> Table:
        """The table with some of its columns."""
        rows = [row._replace(cells=row.cells[part]) for row in self.rows]
        return replace(self, columns=self.columns[part], rows=rows)


def with_changes(plain: Cell, *others: Cell) -> list[Cell]:
    """A cell, then each of the others followed by its difference from the first."""
    return [plain, *(cell for other in others for cell in (other, other - plain))]


def spread_notes(tables: Iterable[Table]) -> list[str]:
    """Explain each kind of ± in the tables, and why differences of one seed have none."""
    cells = [item for table in tables for row in table.rows for item in table.items(row)]
    deltas = [cell for column, cell in cells if column.is_delta and cell.value is not None]
    notes = [SD_NOTE] if any(cell.sd is not None and not column.is_delta for column, cell in cells) else []
    notes += [MARGIN_NOTE] if any(cell.margin is not None for cell in deltas) else []
    return notes + ([ONE_SEED_NOTE] if any(cell.margin is None for cell in deltas) else [])
