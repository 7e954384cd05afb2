"""Methods with positive augmentation against Panda, which is negative augmentation."""

from __future__ import annotations

from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import ZERO_NOTE, accuracy, encoded_per_image, papers_benchmarks
from tta_panda.experiments.paper import PaperVariant
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.cells import ACCURACY, BIAS
from tta_panda.reporting.tables import Column, Row, Table

_POSITIVE = ("tpt", "zero", "tps")


class PositiveAugmentationTable(Experiment):
    title = "Positive augmentation against Panda"
    about = "TPT, Zero and TPS, which look at many views of each image, against Tent with Panda."
    in_paper = "Table 2"
    compares_benchmarks = True

    def series(self, setup: Setup) -> list[Series]:
        return [*(setup.plain(name) for name in _POSITIVE), *setup.with_panda("tent")]

    def result(self, results: SetupResults) -> Result:
        setup = results.setup
        rows = []
        for series in self.series(setup):
            name = series.candidates[0].method.partition("+")[0]
            variant: PaperVariant = "panda" if name == "tent" else "plain"
            encoded = encoded_per_image(results, series, "images", "images_with_gradient")
            cells = [accuracy(results, series, name, variant), results.mean(series, BIAS), encoded]
            rows.append(Row(series.label, cells))
        columns = [Column.of(metric, metric.title) for metric in (ACCURACY, BIAS)]
        columns.append(Column("images encoded per image", 1, "lower"))
        tables = [Table("Mean of 15 corruptions at severity 5", "method", columns, rows, ZERO_NOTE)]
        if setup.benchmark is None:
            paper: dict[str, tuple[str, PaperVariant]] = {name: (name, "plain") for name in _POSITIVE}
            tables.append(papers_benchmarks("Positive augmentation", {**paper, "tent+panda": ("tent", "panda")}))
        return Result(tables)
