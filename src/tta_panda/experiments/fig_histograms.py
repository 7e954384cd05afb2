"""Which classes are predicted under each corruption, without and with Panda."""

from __future__ import annotations

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.evaluation.record import Measurement, RunRecord
from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.comparison import corruption_rows
from tta_panda.reporting.figures import class_histograms
from tta_panda.reporting.tables import Column, Row, Table


class HistogramsFigure(Experiment):
    title = "Predicted classes"
    about = "How often each class is predicted by CLIP without and with Panda, and how often it occurs."
    in_paper = "Appendix, histograms"

    def series(self, setup: Setup) -> list[Series]:
        return [setup.plain("clip"), setup.panda("clip")]

    def result(self, results: SetupResults) -> Result:
        shown = {series.label: series for series in self.series(results.setup)}
        columns = [Column(f"{label}: most predicted class (%)", better="lower") for label in shown]
        rows = [
            Row(name, [results.measured(series, name, _largest_share) for series in shown.values()], group)
            for group, name in corruption_rows(CORRUPTIONS)
        ]
        caption = f"{self.about} Seed {results.setup.seeds[0]}."
        figure = class_histograms(results, shown, CORRUPTIONS, caption)
        return Result([Table("Share of the most predicted class", "corruption", columns, rows)], [figure])


def _largest_share(_: RunRecord, measured: Measurement) -> float:
    return 100 * max(measured.predicted_counts) / measured.samples
