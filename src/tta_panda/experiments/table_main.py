"""Ten methods with and without Panda: the paper's main table."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import ZERO_NOTE, accuracy, papers_benchmarks
from tta_panda.experiments.paper import MAIN_ROWS, METHODS
from tta_panda.experiments.setup import AUTO, BEST_OF_GRID, SEVERITY, Series, Setup
from tta_panda.reporting.cells import ACCURACY, BIAS, CALIBRATION, LIKELIHOOD, RECALL_SPREAD
from tta_panda.reporting.figures import DotFigure, Dots
from tta_panda.reporting.tables import Column, Row, Table


class MainTable(Experiment):
    title = "Ten methods with and without Panda"
    about = "Mean accuracy over 15 corruptions, mean ± s.d. over seeds, and what Panda changes."
    in_paper = "Table 1"
    compares_benchmarks = True

    def series(self, setup: Setup) -> list[Series]:
        return [series for name in METHODS for series in (setup.plain(name), *setup.with_panda(name))]

    def result(self, results: SetupResults) -> Result:
        tables = [accuracy_table(results, METHODS), quality_table(results, METHODS)]
        figures = [accuracy_dots(tables[0])]
        if results.setup.benchmark is None:
            tables.append(papers_benchmarks("Ten methods", MAIN_ROWS))
        return Result(tables, figures)


def accuracy_table(results: SetupResults, methods: Sequence[str]) -> Table:
    """Methods down; across, plain, with Panda, and what that changes."""
    setup = results.setup
    ways = [f"+panda ({AUTO})", f"+panda ({BEST_OF_GRID})"] if setup.beta == "grid" else ["+panda"]
    columns = [Column.of(ACCURACY, "plain")]
    columns += [column for way in ways for column in (Column.of(ACCURACY, way), Column.delta(ACCURACY))]
    columns += [Column("its beta")] if setup.beta == "grid" else []
    rows = []
    for name in methods:
        cells = [plain := accuracy(results, setup.plain(name), name, "plain")]
        for series in setup.with_panda(name):
            panda = accuracy(results, series, name, "panda")
            cells += [panda, panda - plain]
        if setup.beta == "grid":
            cells.append(results.chosen_beta(setup.best_of_grid(name)))
        rows.append(Row(name, cells))
    return Table(f"Accuracy (%), {_mean(results)}", "method", columns, rows)


def accuracy_dots(table: Table) -> DotFigure:
    """The accuracies of a table."""
    shown = [(i, column.title) for i, column in enumerate(table.columns) if column.better and not column.is_delta]
    dots = [Dots.of(title, (row.cells[index] for row in table.rows)) for index, title in shown]
    caption = f"{table.title}. Bars are one s.d. over seeds."
    return DotFigure(caption, ACCURACY.title, [row.name for row in table.rows], dots)


def quality_table(results: SetupResults, methods: Sequence[str]) -> Table:
    """Metrics that the paper's table does not have."""
    metrics = (BIAS, CALIBRATION, LIKELIHOOD, RECALL_SPREAD)
    way = f" ({AUTO})" if results.setup.beta == "grid" else ""
    columns = [Column.of(metric, f"{metric.short}{suffix}") for metric in metrics for suffix in ("", f" +panda{way}")]
    rows = []
    for name in methods:
        pair = (results.setup.plain(name), results.setup.panda(name))
        rows.append(Row(name, [results.mean(series, metric) for metric in metrics for series in pair]))
    names = ", ".join(metric.title for metric in metrics)
    note = f"Lower is better throughout. {ZERO_NOTE}"
    return Table(
        f"{names[0].upper()}{names[1:]}, {_mean(results)}",
        "method",
        columns,
        rows,
        note,
        name="more",
    )


def _mean(results: SetupResults) -> str:
    return f"mean of {len(results.corruptions)} corruptions at severity {SEVERITY}"
