"""A setting in one look: methods down, means over the corruptions across."""

from __future__ import annotations

import math
from collections.abc import Callable

from tta_panda.data.dataset import CLEAN
from tta_panda.evaluation.record import PassesPerBatch
from tta_panda.reporting.grids import Cell, Grid, GridRow, make_cell
from tta_panda.reporting.tables import ResultTable, Series, lower_bias_count


def summary_grids(table: ResultTable) -> list[Grid]:
    """What Panda changed for each method, and what each method costs."""
    return [means_grid(table), passes_grid(table)] if table.pairs() else [passes_grid(table)]


def means_grid(table: ResultTable) -> Grid:
    """Accuracy and prediction bias of every method without and with Panda, over all corruptions, and on clean data."""
    count = len(table.corrupted)
    headers = ["accuracy", "+panda", "Δ", "L1", "+panda", "Δ", "L1 lower in"]
    headers += ["clean", "+panda", "Δ"] if CLEAN in table.corruptions else []
    rows = []
    for plain, panda in table.pairs():
        cells = [
            *_compared(lambda series: 100 * table.mean(series, "accuracy"), plain, panda, 1, more_is_better=True),
            *_compared(lambda series: table.mean(series, "l1"), plain, panda, 3, more_is_better=False),
            Cell(f"{lower_bias_count(table, plain, panda)} of {count}"),
        ]
        if CLEAN in table.corruptions:
            cells += _compared(
                lambda series: 100 * table.value(series, CLEAN, "accuracy"), plain, panda, 1, more_is_better=True
            )
        rows.append(GridRow("", "", table.label(plain), cells))
    title = f"Mean of {count} corruptions: accuracy (%) and prediction bias (L1)"
    return Grid(title, headers, rows, rows_are="method")


def _compared(
    value: Callable[[Series], float], plain: Series, panda: Series, decimals: int, *, more_is_better: bool
) -> list[Cell]:
    before, after = value(plain), value(panda)
    return [
        make_cell(before, False, decimals, more_is_better),
        make_cell(after, False, decimals, more_is_better),
        make_cell(after - before, True, decimals, more_is_better),
    ]


def passes_grid(table: ResultTable) -> Grid:
    """What every method sends through the encoders for a batch."""
    names = list(PassesPerBatch.model_fields)
    rows = [
        GridRow("", "", table.label(series), [Cell(_number(_mean_passes(table, series, name))) for name in names])
        for series in table.series
    ]
    title = f"Encoded per batch of {table.setting.batch_size} images, mean"
    return Grid(title, [name.replace("_", " ") for name in names], rows, rows_are="method")


def _mean_passes(table: ResultTable, series: Series, name: str) -> float:
    records = [record for key, records in table.cells.items() if key[0] == series for record in records]
    return math.fsum(getattr(record.passes, name) for record in records) / len(records)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1f}".removesuffix(".0")
