"""Which classes are predicted under each corruption, without and with Panda."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.evaluation.record import RunRecord
from tta_panda.experiments.base import Experiment, Outcomes
from tta_panda.experiments.layout import corruption_rows
from tta_panda.experiments.results import Cell, Column, Histogram, HistogramFigure, Result, Row, Table, over_seeds
from tta_panda.experiments.setup import Series, Setup


class HistogramsFigure(Experiment):
    title = "Predicted classes"
    about = "How often each class is predicted by CLIP without and with Panda, and how often it occurs."
    in_paper = "Appendix, histograms"

    def series(self, setup: Setup) -> list[Series]:
        return [setup.plain("clip"), setup.panda("clip")]

    def lay_out(self, outcomes: Outcomes) -> Result:
        shown = self.series(outcomes.setup)
        histograms, classes, shares = [], [], {}
        for name in CORRUPTIONS:
            found = [outcomes.records(series.candidates[0], name) for series in shown]
            shares[name] = [
                _largest_share(records) if records else outcomes.empty(series.candidates[0], [name])
                for series, records in zip(shown, found, strict=True)
            ]
            if not all(found):
                continue
            first = [records[0] for records in found]  # one seed is drawn: counts are of images, not of means
            classes = first[0].class_names
            counts = [record.predicted_counts for record in first]
            histograms.append(Histogram(name.replace("_", " "), counts, first[0].label_counts))
        columns = [Column(f"{series.label}: most predicted class (%)", better="lower") for series in shown]
        rows = [Row(name, shares[name], group) for group, name in corruption_rows(CORRUPTIONS)]
        figure = HistogramFigure(
            f"{self.about} Seed {outcomes.setup.seeds[0]}.", [s.label for s in shown], classes, histograms
        )
        return Result([Table("Share of the most predicted class", "corruption", columns, rows)], [figure])


def _largest_share(records: Sequence[RunRecord]) -> Cell:
    return over_seeds([100 * max(record.predicted_counts) / record.samples for record in records])
