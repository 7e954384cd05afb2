"""The main table corruption by corruption: the paper's appendix."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.experiments.base import Outcomes
from tta_panda.experiments.layout import PAPERS_OWN, ZERO_NOTE, by_corruption, papers_cell, short_name
from tta_panda.experiments.paper import BACKBONES, MEAN
from tta_panda.experiments.results import BIAS, Column, Result, Row, Table
from tta_panda.experiments.setup import Series
from tta_panda.experiments.table_main import MainTable
from tta_panda.methods import METHODS


class CorruptionsTable(MainTable):
    title = "Every corruption"
    about = "The accuracies of the main table on each of the 15 corruptions."
    in_paper = "Appendix, table of all corruption domains"
    compares_benchmarks = False

    def lay_out(self, outcomes: Outcomes) -> Result:
        setup = outcomes.setup
        rows: list[tuple[Series, str, Literal["plain", "panda"] | None]] = []
        for name in METHODS:
            rows.append((setup.plain(name), name, "plain"))
            rows += [(series, name, "panda") for series in setup.with_panda(name)]
        bias = by_corruption(outcomes, "Prediction bias (L1)", [(series, name, None) for series, name, _ in rows], BIAS)
        tables = [
            by_corruption(outcomes, "Accuracy (%)", rows),
            replace(bias, note=ZERO_NOTE, name="bias"),
        ]
        return Result(tables if setup.benchmark else [*tables, _papers()])


def _papers() -> Table:
    benchmark = "cifar10-c"
    columns = [Column(short_name(name), better="higher") for name in CORRUPTIONS] + [Column(MEAN, better="higher")]
    variants: tuple[tuple[str, Literal["plain", "panda"]], ...] = (("", "plain"), ("+panda", "panda"))
    rows = [
        Row(f"{name}{suffix}", [papers_cell(benchmark, name, variant, c) for c in (*CORRUPTIONS, MEAN)])
        for name in METHODS
        for suffix, variant in variants
    ]
    title = f"{BACKBONES[benchmark]}: printed in the paper, accuracy (%)"
    return Table(title, "method", columns, rows, PAPERS_OWN, of_paper=True, name="in-paper")
