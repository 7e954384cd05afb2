"""Figures from result tables, as matplotlib figures; `to_svg` makes them part of a page."""

from __future__ import annotations

import io
import math
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tta_panda.reporting.tables import ResultTable, Series

PLAIN_COLOUR, PANDA_COLOUR, REFERENCE_COLOUR = "#E69F00", "#0072B2", "#555555"  # Okabe & Ito, safe for the colour-blind

_WIDTH = 10.6  # inches: the text width of the page
_MOST_NAMED_CLASSES = 20

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tta-panda",  # same figure, same bytes
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def bias_bars(table: ResultTable, plain: Series, panda: Series) -> Figure:
    """Prediction bias of every corruption, with and without Panda, side by side."""
    names = table.corruptions
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 3.3), layout="constrained")
        axes = figure.subplots()
        for offset, series, colour in ((-0.2, plain, PLAIN_COLOUR), (0.2, panda, PANDA_COLOUR)):
            heights = [table.value(series, name, "l1") for name in names]
            axes.bar([i + offset for i in range(len(names))], heights, 0.38, color=colour, label=table.label(series))
        axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names], rotation=35, ha="right")
        axes.set_ylabel("prediction bias (L1)")
        axes.margins(x=0.01)
        axes.legend(frameon=False, ncols=2, loc="upper right", bbox_to_anchor=(1, 1.12))
    return figure


def class_histograms(table: ResultTable, plain: Series, panda: Series) -> Figure:
    """How often each class is predicted, corruption by corruption; the line is how often it occurs."""
    names = [n for n in table.corruptions if (plain, n) in table.cells and (panda, n) in table.cells]
    across = 4
    down = max(1, math.ceil(len(names) / across))
    classes = next(iter(table.cells.values()))[0].class_names
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 1.35 * down + 1.6), layout="constrained")
        grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(names) :]:
            axes.set_visible(False)
        for axes, name in zip(grid.flat, names, strict=False):
            _class_histogram(axes, table, plain, panda, name)
        if len(classes) <= _MOST_NAMED_CLASSES:
            for axes in grid.flat[max(0, len(names) - across) : len(names)]:  # the lowest panel of each column
                axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=8)
                axes.tick_params(labelbottom=True)
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
        figure.supylabel("predicted images", fontsize=9)
    return figure


def _class_histogram(axes: Axes, table: ResultTable, plain: Series, panda: Series, corruption: str) -> None:
    for offset, series, colour in ((-0.2, plain, PLAIN_COLOUR), (0.2, panda, PANDA_COLOUR)):
        counts = table.cells[series, corruption][0].predicted_counts
        axes.bar([i + offset for i in range(len(counts))], counts, 0.4, color=colour, label=table.label(series))
    labels = table.cells[plain, corruption][0].label_counts
    edges = [i - 0.5 for i in range(len(labels) + 1)]
    axes.stairs(labels, edges, color=REFERENCE_COLOUR, linewidth=0.8, linestyle="--", label="labels")
    axes.set_title(corruption.replace("_", " "), fontsize=9)
    axes.set_xticks([])


def to_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
