"""Two uses of negative augmentation: DeYO selects and weights images with it, Panda subtracts it."""

from __future__ import annotations

from functools import partial

from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import accuracy, by_corruption, papers_benchmarks
from tta_panda.experiments.paper import MEAN, PaperVariant
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.cells import ACCURACY, BIAS
from tta_panda.reporting.tables import Column, Row, Table

_ROWS: dict[str, tuple[str, PaperVariant]] = {
    "clip": ("clip", "plain"),
    "deyo: select & weight": ("deyo", "plain"),
    "deyo: offset instead": ("deyo", "offset"),
}


class NegativeAugmentationTable(Experiment):
    title = "Select and weight, or subtract"
    about = "DeYO as it is, and with Panda's offset in the place of its own negatives (second filter and weight)."
    in_paper = "Table 4 and its appendix"
    compares_benchmarks = True

    def series(self, setup: Setup) -> list[Series]:
        clip, deyo, offset = _ROWS
        rows = [setup.plain("clip", clip), setup.plain("deyo", deyo), setup.panda("deyo", offset, destroy="none")]
        return [*rows, setup.best_of_grid("deyo", offset, destroy="none")] if setup.beta == "grid" else rows

    def result(self, results: SetupResults) -> Result:
        setup = results.setup
        rows = {}
        for series in self.series(setup):
            rows[series] = partial(accuracy, results, series, *_ROWS.get(series.label, ("deyo", "offset")))
        tables = [
            Table(
                "Mean of 15 corruptions at severity 5",
                "method",
                [Column.of(metric, metric.title) for metric in (ACCURACY, BIAS)],
                [Row(series.label, [find(MEAN), results.mean(series, BIAS)]) for series, find in rows.items()],
            ),
            by_corruption(
                "Accuracy (%) on every corruption",
                ACCURACY,
                {series.label: find for series, find in rows.items()},
                "corruptions",
            ),
        ]
        return Result(tables if setup.benchmark else [*tables, papers_benchmarks("Negative augmentation", _ROWS)])
