"""Two uses of negative augmentation: DeYO selects and weights images with it, Panda subtracts it."""

from __future__ import annotations

from dataclasses import replace

from tta_panda.experiments.base import Experiment, Outcomes
from tta_panda.experiments.layout import by_corruption, papers_benchmarks, with_paper
from tta_panda.experiments.paper import PaperVariant
from tta_panda.experiments.results import ACCURACY, BIAS, Column, Result, Row, Table
from tta_panda.experiments.setup import Series, Setup

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

    def lay_out(self, outcomes: Outcomes) -> Result:
        setup = outcomes.setup
        rows = [(series, *_ROWS.get(series.label, ("deyo", "offset"))) for series in self.series(setup)]
        means = Table(
            "Mean of 15 corruptions at severity 5",
            "method",
            [Column("accuracy (%)", better="higher"), Column("prediction bias (L1)", 3, "lower")],
            [
                Row(
                    series.label,
                    [
                        with_paper(outcomes.mean(series, ACCURACY), setup, series, name, variant),
                        outcomes.mean(series, BIAS),
                    ],
                )
                for series, name, variant in rows
            ],
        )
        every = by_corruption(outcomes, "Accuracy (%) on every corruption", rows)
        tables = [means, replace(every, name="corruptions")]
        return Result(tables if setup.benchmark else [*tables, papers_benchmarks("Negative augmentation", _ROWS)])
