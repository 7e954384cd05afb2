"""Figures of a result table, as data for `figures` to draw."""

from __future__ import annotations

from tta_panda.experiments.results import BarFigure, Bars, Histogram, HistogramFigure
from tta_panda.reporting.tables import ResultTable, Series


def bias_bars(table: ResultTable, plain: Series, panda: Series) -> BarFigure:
    """Prediction bias of every corruption, with and without Panda, side by side."""
    bars = [
        Bars(table.label(series), [table.value(series, name, "l1") for name in table.corruptions])
        for series in (plain, panda)
    ]
    caption = f"Prediction bias per corruption, {_names(table, plain, panda)}. Lower is better."
    return BarFigure(caption, "prediction bias (L1)", [_title(name) for name in table.corruptions], bars)


def class_histograms(table: ResultTable, plain: Series, panda: Series) -> HistogramFigure:
    """How often each class is predicted, corruption by corruption; the line is how often it occurs."""
    both = [name for name in table.corruptions if (plain, name) in table.cells and (panda, name) in table.cells]
    histograms = []
    for name in both:
        one, other = (table.cells[series, name][0] for series in (plain, panda))
        histograms.append(Histogram(_title(name), [one.predicted_counts, other.predicted_counts], one.label_counts))
    names = _names(table, plain, panda)
    caption = f"Predicted classes, {names}. The dashed line shows how often each class really occurs."
    classes = next(iter(table.cells.values()))[0].class_names
    return HistogramFigure(caption, [table.label(plain), table.label(panda)], classes, histograms)


def _names(table: ResultTable, plain: Series, panda: Series) -> str:
    return f"{table.label(plain)} and {table.label(panda)}"


def _title(name: str) -> str:
    return name.replace("_", " ")
