"""Bias and accuracy while a stream goes on, in ten consecutive chunks."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.evaluation.record import RunRecord
from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import by_tenth
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.cells import ACCURACY, BIAS
from tta_panda.reporting.figures import Line, LineFigure, Panel
from tta_panda.reporting.tables import Column, Row, Table

_CORRUPTION = "gaussian_noise"
_QUICK_IMAGES = 1000  # fewer would leave chunks too small to tell bias from chance


class EvolutionFigure(Experiment):
    title = "Along the stream"
    about = "Prediction bias and accuracy in ten consecutive chunks of the stream, gaussian noise."
    in_paper = "Figure 4"

    def series(self, setup: Setup) -> list[Series]:
        return [make("tent", quick_images=_QUICK_IMAGES) for make in (setup.plain, setup.panda)]

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return (_CORRUPTION,)

    def result(self, results: SetupResults) -> Result:
        shown = self.series(results.setup)
        records = {series: results.records(series, _CORRUPTION) for series in shown}
        tenths = max((len(record.tenths) for found in records.values() for record in found), default=1)
        columns, by_column, panels = [], [], []
        for metric in (BIAS, ACCURACY):
            lines = []
            for hue, (series, found) in enumerate(records.items()):
                cells = by_tenth(found, metric) or [results.empty(series, [_CORRUPTION])] * tenths
                columns.append(Column.of(metric, f"{series.label}: {metric.title}"))
                by_column.append(cells)
                lines.append(Line.of(series.label, dict(enumerate(cells, 1)), hue))
            panels.append(Panel("tenth of the stream", metric.title, lines))
        rows = [Row(str(index + 1), cells) for index, cells in enumerate(zip(*by_column, strict=True))]
        size = _chunk_size([record for found in records.values() for record in found])
        table = Table(f"Chunks of {size}, gaussian noise", "chunk", columns, rows)
        return Result([table], [LineFigure(f"{self.about} Bars are one s.d. over seeds.", panels)], [_note(size)])


def _chunk_size(records: Sequence[RunRecord]) -> str:
    """As text; chunks differ by an image where their number does not divide the stream."""
    sizes = sorted({tenth.samples for record in records for tenth in record.tenths})
    if len(sizes) > 1:
        return f"{sizes[0]} to {sizes[-1]} images"
    return f"{sizes[0]} image{'s' * (sizes[0] != 1)}" if sizes else "no images"


def _note(size: str) -> str:
    return (
        f"A chunk has {size}. Small chunks show more bias by chance alone, equally for both methods. A "
        "method predicts each batch before it learns from it, so the first batch shows it unadapted."
    )
