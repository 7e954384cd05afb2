"""Bias and accuracy while a stream goes on, in ten consecutive chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tta_panda.evaluation.record import RunRecord
from tta_panda.experiments.base import Experiment, Outcomes
from tta_panda.experiments.results import (
    ACCURACY,
    BIAS,
    Cell,
    Column,
    Line,
    LineFigure,
    Metric,
    Panel,
    Result,
    Row,
    Table,
    over_seeds,
)
from tta_panda.experiments.setup import Series, Setup

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

    def lay_out(self, outcomes: Outcomes) -> Result:
        shown = self.series(outcomes.setup)
        records = {series: outcomes.records(series.candidates[0], _CORRUPTION) for series in shown}
        tenths = max((len(record.tenths) for found in records.values() for record in found), default=1)
        columns, by_column, panels = [], [], []
        for metric in (BIAS, ACCURACY):
            lines = []
            for hue, (series, found) in enumerate(records.items()):
                cells = _by_tenth(found, metric) or [outcomes.empty(series.candidates[0], [_CORRUPTION])] * tenths
                columns.append(Column(f"{series.label}: {metric.title}", metric.decimals, metric.better))
                by_column.append(cells)
                places = list(range(1, len(cells) + 1))
                lines.append(Line(series.label, places, [c.value for c in cells], [c.sd for c in cells], hue))
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
        f"A chunk has {size}. The fewer, the larger is the bias that chance alone gives; it is the same for "
        "both methods. A method predicts each batch before it learns from it, so the first batch shows it unadapted."
    )


def _by_tenth(records: Sequence[RunRecord], metric: Metric) -> list[Cell]:
    name: Literal["l1", "accuracy"] = "l1" if metric is BIAS else "accuracy"
    cells = []
    for tenths in zip(*(record.tenths for record in records), strict=True):
        values = [metric.factor * getattr(tenth, name) for tenth in tenths]
        cells.append(over_seeds(values))
    return cells
