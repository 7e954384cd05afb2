"""Result tables as text in rows and columns, ready for a terminal or a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tta_panda.experiments.results import NOT_RUN
from tta_panda.reporting.tables import Column, ResultTable, columns, lower_bias_count


class Cell(NamedTuple):
    text: str
    kind: Literal["", "better", "worse", "missing"] = ""
    spread: str = ""
    """The s.d. over seeds, as "± 0.1"."""
    paper: Cell | None = None
    """What the paper printed for it."""

    @property
    def full(self) -> str:
        """The number with its spread."""
        return f"{self.text} {self.spread}" if self.spread else self.text


class GridRow(NamedTuple):
    kind: Literal["", "first", "mean"]
    group: str
    name: str
    cells: Sequence[Cell]


class Grid(NamedTuple):
    title: str
    headers: Sequence[str]
    rows: Sequence[GridRow]
    rows_are: str = "corruption"


METHODS_PER_GRID = 3
"""More do not fit side by side, each with its Panda variant and the difference."""


def result_grids(table: ResultTable) -> list[Grid]:
    """Accuracy and prediction bias of a setting, corruption by corruption."""
    methods = list(dict.fromkeys(series.method.base for series in table.series))
    pieces = [methods[start : start + METHODS_PER_GRID] for start in range(0, len(methods), METHODS_PER_GRID)]
    parts = [table.restricted_to(piece) for piece in pieces]
    return [
        *(
            _grid(part, "Accuracy (%)", columns(part, "accuracy", 100.0), decimals=1, more_is_better=True)
            for part in parts
        ),
        *(_grid(part, "Prediction bias (L1)", columns(part, "l1"), decimals=3, more_is_better=False) for part in parts),
    ]


def verdicts(table: ResultTable) -> list[str]:
    """For each method, what Panda changed on average, in a sentence."""
    return [
        f"{table.label(panda)} against {table.label(plain)}: "
        f"accuracy {_change(100 * table.mean(plain, 'accuracy'), 100 * table.mean(panda, 'accuracy'), 1)}, "
        f"bias {_change(table.mean(plain, 'l1'), table.mean(panda, 'l1'), 3)}, "
        f"lower in {lower_bias_count(table, plain, panda)} and higher in {lower_bias_count(table, panda, plain)} "
        f"of {len(table.corrupted)}"
        for plain, panda in table.pairs()
        if not math.isnan(table.mean(plain, "l1") + table.mean(panda, "l1"))
    ]


def _change(before: float, after: float, decimals: int) -> str:
    return f"{before:.{decimals}f} → {after:.{decimals}f} ({after - before:+.{decimals}f})"


def _grid(table: ResultTable, title: str, shown: Sequence[Column], decimals: int, more_is_better: bool) -> Grid:
    rows = [
        GridRow(
            "" if index else "first",
            "" if index else group,
            name,
            [make_cell(column.value(name), column.is_delta, decimals, more_is_better) for column in shown],
        )
        for group, names in table.rows()
        for index, name in enumerate(names)
    ]
    if len(table.corrupted) > 1:
        means = [make_cell(column.mean(), column.is_delta, decimals, more_is_better) for column in shown]
        rows.append(GridRow("mean", "", f"mean of {len(table.corrupted)}", means))
    return Grid(title, [column.title for column in shown], rows)


def make_cell(value: float, is_delta: bool, decimals: int, more_is_better: bool) -> Cell:
    """A number, and for differences whether it is for the better."""
    if math.isnan(value):
        return Cell(NOT_RUN, "missing")
    if not is_delta:
        return Cell(f"{value:.{decimals}f}")
    rounded = round(value, decimals) + 0.0  # no negative zero
    if rounded == 0:
        return Cell(f"{rounded:+.{decimals}f}")
    return Cell(f"{rounded:+.{decimals}f}", "better" if (rounded > 0) == more_is_better else "worse")
