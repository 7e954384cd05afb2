"""Ten methods with and without Panda: the paper's main table."""

from __future__ import annotations

from tta_panda.experiments.base import Experiment, Outcomes
from tta_panda.experiments.layout import ZERO_NOTE, papers_benchmarks, with_paper
from tta_panda.experiments.results import (
    ACCURACY,
    BIAS,
    CALIBRATION,
    LIKELIHOOD,
    RECALL_SPREAD,
    Column,
    Result,
    Row,
    Table,
)
from tta_panda.experiments.setup import AUTO, BEST_OF_GRID, Series, Setup
from tta_panda.methods import METHODS

_MEAN = "mean of 15 corruptions at severity 5"


class MainTable(Experiment):
    title = "Ten methods with and without Panda"
    about = "Mean accuracy over 15 corruptions, mean ± s.d. over seeds, and what Panda changes."
    in_paper = "Table 1"
    compares_benchmarks = True

    def series(self, setup: Setup) -> list[Series]:
        return [series for name in METHODS for series in (setup.plain(name), *setup.with_panda(name))]

    def lay_out(self, outcomes: Outcomes) -> Result:
        tables = [_accuracies(outcomes), _beyond(outcomes)]
        if outcomes.setup.benchmark is None:
            paper = {
                f"{name}{suffix}": (name, variant)
                for name in METHODS
                for suffix, variant in (("", "plain"), ("+panda", "panda"))
            }
            tables.append(papers_benchmarks("Ten methods", paper))  # type: ignore[arg-type]
        return Result(tables)


def _accuracies(outcomes: Outcomes) -> Table:
    setup = outcomes.setup
    columns = [Column("plain", better="higher"), Column("+panda", better="higher"), Column("Δ", 1, "higher", True)]
    if setup.beta == "grid":
        columns[1] = Column(f"+panda ({AUTO})", better="higher")
        columns += [Column(f"+panda ({BEST_OF_GRID})", better="higher"), Column("Δ", 1, "higher", True)]
        columns.append(Column("its beta"))
    rows = []
    for name in METHODS:
        plain = with_paper(outcomes.mean(setup.plain(name), ACCURACY), setup, setup.plain(name), name, "plain")
        cells = [plain]
        for series in setup.with_panda(name):
            panda = with_paper(outcomes.mean(series, ACCURACY), setup, series, name, "panda")
            cells += [panda, panda - plain]
        if setup.beta == "grid":
            cells.append(outcomes.chosen_beta(setup.best_of_grid(name)))
        rows.append(Row(name, cells))
    return Table(f"Accuracy (%), {_MEAN}", "method", columns, rows)


def _beyond(outcomes: Outcomes) -> Table:
    """Metrics that the paper does not have."""
    metrics = (BIAS, CALIBRATION, LIKELIHOOD, RECALL_SPREAD)
    way = f" ({AUTO})" if outcomes.setup.beta == "grid" else ""
    columns = [
        Column(title, metric.decimals, metric.better)
        for metric in metrics
        for title in (metric.short, f"{metric.short} +panda{way}")
    ]
    rows = [
        Row(
            name,
            [
                outcomes.mean(series, metric)
                for metric in metrics
                for series in (outcomes.setup.plain(name), outcomes.setup.panda(name))
            ],
        )
        for name in METHODS
    ]
    names = ", ".join(metric.title for metric in metrics)
    note = f"Lower is better throughout. {ZERO_NOTE}"
    return Table(f"{names[0].upper()}{names[1:]}, {_MEAN}", "method", columns, rows, note, name="more")
