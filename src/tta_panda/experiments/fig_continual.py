"""Accuracy and beta while one corruption follows another and nothing is reset."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import by_tenth, short_name
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.cells import ACCURACY, BETA, Metric
from tta_panda.reporting.comparison import corruption_rows
from tta_panda.reporting.figures import Line, LineFigure, Panel
from tta_panda.reporting.tables import Column, Row, Table

_NAMES = {index + 0.5: short_name(corruption) for index, corruption in enumerate(CORRUPTIONS)}
"""Of the parts of the stream, each a unit long, at their middles."""


class ContinualFigure(Experiment):
    title = "One corruption after another"
    about = "Accuracy on each corruption of a stream of 15 that is never reset, and beta along it."

    def series(self, setup: Setup) -> list[Series]:
        plain, level = setup.plain("clip", order="continual"), setup.debiased("clip", "panda+level", order="continual")
        return [plain, level, *_with_panda(setup)]

    def result(self, results: SetupResults) -> Result:
        shown = self.series(results.setup)
        accuracies = [_by_corruption(results, series, hue) for hue, series in enumerate(shown)]
        betas = [_by_tenth(results, series, shown.index(series)) for series in _with_panda(results.setup)]
        panels = [Panel("", ACCURACY.title, accuracies, names=_NAMES), Panel("", BETA.title, betas, names=_NAMES)]
        caption = f"{self.about} Bars are one s.d. over seeds; betas are means over seeds, ten for each corruption."
        tables = [_table(results, ACCURACY, shown), _table(results, BETA, _with_panda(results.setup), "beta")]
        return Result(tables, [LineFigure(caption, panels)])


def _with_panda(setup: Setup) -> list[Series]:
    return [setup.panda(name, order="continual") for name in ("clip", "tent")]


def _by_corruption(results: SetupResults, series: Series, hue: int) -> Line:
    cells = [results.cell(series, ACCURACY, name) for name in CORRUPTIONS]
    return Line.of(series.label, dict(zip(_NAMES, cells, strict=True)), hue)


def _by_tenth(results: SetupResults, series: Series, hue: int) -> Line:
    cells = by_tenth(results.records(series, CORRUPTIONS[0]), BETA)
    places = [(index + 0.5) * len(CORRUPTIONS) / len(cells) for index in range(len(cells))]
    return Line(series.label, places, [cell.value for cell in cells], hue=hue)


def _table(results: SetupResults, metric: Metric, shown: Sequence[Series], name: str = "") -> Table:
    rows = [
        Row(corruption, [results.cell(series, metric, corruption) for series in shown], group)
        for group, corruption in corruption_rows(CORRUPTIONS)
    ]
    means = [results.mean(series, metric) for series in shown]
    rows.append(Row(f"mean of {len(CORRUPTIONS)}", means, is_mean=True))
    columns = [Column.of(metric, series.label) for series in shown]
    return Table(f"{metric.heading} on each corruption", "corruption", columns, rows, name=name)
