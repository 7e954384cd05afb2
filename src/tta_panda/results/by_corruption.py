"""Figures that show series corruption by corruption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tta_panda.results.figure import DotFigure, Dots, Histogram, HistogramFigure
from tta_panda.results.table import Metric, Results

S = TypeVar("S")


def corruption_dots(
    results: Results[S],
    series: Mapping[str, S],
    metric: Metric,
    corruptions: Sequence[str],
    caption: str,
    level: tuple[str, float] | None = None,
) -> DotFigure:
    """A metric of each series on each corruption."""
    cells = {label: [results.cell(each, metric, name) for name in corruptions] for label, each in series.items()}
    dots = [Dots.of(label, of) for label, of in cells.items()]
    caption = f"{caption} {metric.better.capitalize()} is better."
    return DotFigure(caption, metric.title, _spaced(corruptions), dots, level)


def class_histograms(
    results: Results[S], series: Mapping[str, S], corruptions: Sequence[str], caption: str
) -> HistogramFigure:
    """How often each class is predicted, for each corruption that all of the series were run on."""
    histograms: list[Histogram] = []
    classes: Sequence[str] = ()
    for corruption, title in zip(corruptions, _spaced(corruptions), strict=True):
        found = [results.records(each, corruption) for each in series.values()]
        if all(found):
            classes = found[0][0].class_names
            first = [records[0].by_corruption[corruption] for records in found]  # of one seed: counts are of images
            counts = [measured.predicted_counts for measured in first]
            histograms.append(Histogram(title, counts, first[0].label_counts))
    return HistogramFigure(caption, list(series), classes, histograms)


def _spaced(names: Sequence[str]) -> list[str]:
    return [name.replace("_", " ") for name in names]
