"""The main table corruption by corruption: the paper's appendix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tta_panda.experiments.base import Result, SetupResults
from tta_panda.experiments.layout import PAPERS_OWN, ZERO_NOTE, accuracy, by_corruption, papers_cell
from tta_panda.experiments.paper import BACKBONES, MAIN_ROWS, METHODS, PaperVariant
from tta_panda.experiments.setup import Series
from tta_panda.experiments.table_main import MainTable
from tta_panda.reporting.cells import ACCURACY, BIAS, Cell
from tta_panda.reporting.tables import Table


class CorruptionsTable(MainTable):
    title = "Every corruption"
    about = "The accuracies of the main table on each of the 15 corruptions."
    in_paper = "Appendix, table of all corruption domains"
    compares_benchmarks = False

    def result(self, results: SetupResults) -> Result:
        setup = results.setup
        accuracies: dict[str, Callable[[str], Cell]] = {}
        biases: dict[str, Callable[[str], Cell]] = {}
        for name in METHODS:
            variants: list[tuple[Series, PaperVariant]] = [(setup.plain(name), "plain")]
            variants += [(series, "panda") for series in setup.with_panda(name)]
            for series, variant in variants:
                accuracies[series.label] = partial(accuracy, results, series, name, variant)
                biases[series.label] = partial(results.cell_or_mean, series, BIAS)
        bias = by_corruption("Prediction bias (L1)", BIAS, biases, "bias")
        tables = [by_corruption("Accuracy (%)", ACCURACY, accuracies), replace(bias, note=ZERO_NOTE)]
        return Result(tables if setup.benchmark else [*tables, _papers("cifar10-c")])


def _papers(benchmark: str) -> Table:
    rows = {label: partial(papers_cell, benchmark, *key) for label, key in MAIN_ROWS.items()}
    table = by_corruption(f"{BACKBONES[benchmark]}: printed in the paper, accuracy (%)", ACCURACY, rows, "in-paper")
    return replace(table, note=PAPERS_OWN, of_paper=True)
