"""Methods with positive augmentation against Panda, which is negative augmentation."""

from __future__ import annotations

import math

from tta_panda.experiments.base import Experiment, Outcomes
from tta_panda.experiments.layout import ZERO_NOTE, papers_benchmarks, with_paper
from tta_panda.experiments.paper import PaperVariant
from tta_panda.experiments.results import ACCURACY, BIAS, Cell, Column, Result, Row, Table
from tta_panda.experiments.setup import Series, Setup

_POSITIVE = ("tpt", "zero", "tps")


class PositiveAugmentationTable(Experiment):
    title = "Positive augmentation against Panda"
    about = "TPT, Zero and TPS, which look at many views of each image, against Tent with Panda."
    in_paper = "Table 2"
    compares_benchmarks = True

    def series(self, setup: Setup) -> list[Series]:
        return [*(setup.plain(name) for name in _POSITIVE), *setup.with_panda("tent")]

    def lay_out(self, outcomes: Outcomes) -> Result:
        setup = outcomes.setup
        rows = []
        for series in self.series(setup):
            name = series.candidates[0].method.partition("+")[0]
            variant: PaperVariant = "panda" if name == "tent" else "plain"
            accuracy = with_paper(outcomes.mean(series, ACCURACY), setup, series, name, variant)
            rows.append(Row(series.label, [accuracy, outcomes.mean(series, BIAS), _passes(outcomes, series)]))
        columns = [Column("accuracy (%)", better="higher"), Column("prediction bias (L1)", 3, "lower")]
        columns.append(Column("images encoded per image", 1, "lower"))
        tables = [Table("Mean of 15 corruptions at severity 5", "method", columns, rows, ZERO_NOTE)]
        if setup.benchmark is None:
            paper: dict[str, tuple[str, PaperVariant]] = {name: (name, "plain") for name in _POSITIVE}
            tables.append(papers_benchmarks("Positive augmentation", {**paper, "tent+panda": ("tent", "panda")}))
        return Result(tables)


def _passes(outcomes: Outcomes, series: Series) -> Cell:
    """Images sent through the encoder, views and negatives included, for each image of the stream."""
    records = outcomes.records(outcomes.chosen(series), "gaussian_noise")
    if not records:
        return outcomes.empty(outcomes.chosen(series), ["gaussian_noise"])
    record = records[0]
    batches = math.ceil(record.samples / record.config.batch_size)
    return Cell((record.passes.images + record.passes.images_with_gradient) * batches / record.samples)
