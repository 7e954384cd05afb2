"""Draws figures given as data, with matplotlib: readable in print, on a telephone, and by the colour-blind."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogLocator, NullFormatter

from tta_panda.escapes import printable
from tta_panda.results.figure import DotFigure, Figure, Histogram, HistogramFigure, Line, LineFigure, Panel

# Okabe & Ito: told apart by the colour-blind; markers tell them apart in black and white, too.
COLOURS = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
PLAIN_COLOUR, PANDA_COLOUR = COLOURS[:2]
MARKERS = ("o", "s", "^", "D", "v", "P")
REFERENCE_COLOUR = "#7a7f87"
_INK, _GRID, _PAPER = "#1c2430", "#e3e7ec", "#ffffff"

FORMATS = ("svg", "png", "pdf")

_WIDTH = 4.2  # inches: the column of a paper, or a telephone held upright
_MOST_NAMED_CLASSES = 20
_LONGEST_NAME = 28
_PER_INCH = 160
_HISTOGRAMS = (2, 2)  # of one drawing: down, across

_STYLE: Any = {
    "text.parse_math": False,  # a dollar sign in a name is one
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tta-panda",  # same figure, same bytes
    "pdf.fonttype": 42,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
}


def draw(figure: Figure) -> list[Drawing]:
    """The figure as one or several narrow drawings, which a page sets side by side or below each other."""
    with matplotlib.rc_context(_STYLE):
        if isinstance(figure, LineFigure):
            return [_draw_panel(panel) for panel in figure.panels]
        return [_draw_dots(figure)] if isinstance(figure, DotFigure) else _draw_histograms(figure)


def _drawing(height: float) -> Drawing:
    return Drawing(figsize=(_WIDTH, height), layout="constrained")


def _name(text: str) -> str:
    """A name on one line, cut where it would leave no room for what is drawn."""
    shown = printable(text)
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"


def _draw_panel(panel: Panel) -> Drawing:
    drawing = _drawing(3.2)
    axes = drawing.subplots()
    drawn = [_draw_line(axes, line) for line in panel.lines]
    if panel.log_x:
        values = sorted({x for line in panel.lines for x in line.xs})
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    if panel.log_y:
        axes.set_yscale("log")
        bottom, top = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if top < 20 * bottom else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    if panel.names:
        axes.set_xticks(list(panel.names), map(_name, panel.names.values()), rotation=90, fontsize=8)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="y")
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(printable(panel.title), fontsize=9.5)
    labels = [_name(line.label) for line in panel.lines]
    drawing.legend(drawn, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    return drawing


def _draw_line(axes: Axes, line: Line) -> Any:
    """Draws it, and gives what a legend shows of it."""
    colour, marker = COLOURS[line.hue % len(COLOURS)], MARKERS[line.hue % len(MARKERS)]
    heights = _known(line.ys)
    if line.kind == "level":
        return axes.plot(line.xs, heights, color=colour, linestyle="--", linewidth=1.2)[0]
    if line.kind == "points":
        return axes.plot(line.xs, heights, marker, color=colour, markersize=5, markerfacecolor=_PAPER)[0]
    if not line.sds:  # a closed form, which points lie upon
        return axes.plot(line.xs, heights, color=colour, linewidth=1.5)[0]
    errors = _known(line.sds, 0.0)
    return axes.errorbar(
        line.xs, heights, errors, color=colour, marker=marker, markersize=4.5, linewidth=1.5, capsize=2.5
    )


def _draw_dots(figure: DotFigure) -> Drawing:
    drawing = _drawing(0.9 + 0.22 * len(figure.rows) + 0.16 * len(figure.dots))
    axes = drawing.subplots()
    for index, dots in enumerate(figure.dots):
        # A little apart, so that neither hides the other where they are equal.
        places = [row + 0.2 * (index - (len(figure.dots) - 1) / 2) for row in range(len(figure.rows))]
        axes.errorbar(
            _known(dots.values),
            places,
            xerr=_known(dots.sds, 0.0) if dots.sds else None,
            fmt=MARKERS[index % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            markersize=4.5,
            elinewidth=0.8,
            label=_name(dots.label),
        )
    for row, values in enumerate(zip(*(dots.values for dots in figure.dots), strict=True)):
        if known := [value for value in values if value is not None]:
            axes.hlines(row, min(known), max(known), color=REFERENCE_COLOUR, linewidth=0.8, zorder=1)
    if figure.level is not None:
        axes.axvline(figure.level[1], color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label=figure.level[0])
    axes.set_yticks(range(len(figure.rows)), map(_name, figure.rows))
    axes.set_ylim(len(figure.rows) - 0.4, -0.6)  # from top to bottom
    axes.set_axisbelow(True)
    axes.grid(visible=True)
    axes.set_xlabel(figure.x)
    drawing.legend(loc="outside upper left", ncols=1 + (len(figure.dots) > 2), frameon=False, fontsize=8)
    return drawing


def _draw_histograms(figure: HistogramFigure) -> list[Drawing]:
    most = max((max(*each.labels, *map(max, each.counts)) for each in figure.histograms), default=1)
    size = math.prod(_HISTOGRAMS)
    pieces = [figure.histograms[start : start + size] for start in range(0, len(figure.histograms), size)]
    return [_draw_some_histograms(figure, piece, 1.05 * most) for piece in pieces]


def _draw_some_histograms(figure: HistogramFigure, histograms: Sequence[Histogram], top: float) -> Drawing:
    down, across = _HISTOGRAMS
    drawing = _drawing(1.35 * down + 1.6)
    grid = drawing.subplots(down, across, sharey=True, squeeze=False)
    for axes in grid.flat[len(histograms) :]:
        axes.set_visible(False)
    for axes, histogram in zip(grid.flat, histograms, strict=False):
        _draw_histogram(axes, histogram, figure.kinds)
    grid[0, 0].set_ylim(0, top)
    if len(figure.classes) <= _MOST_NAMED_CLASSES:
        for axes in grid.flat[max(0, len(histograms) - across) : len(histograms)]:  # the lowest of each column
            axes.set_xticks(range(len(figure.classes)), map(_name, figure.classes), rotation=90, fontsize=8)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    drawing.supylabel("predicted images", fontsize=9)
    return drawing


def _draw_histogram(axes: Axes, histogram: Histogram, kinds: Sequence[str]) -> None:
    width = 0.8 / len(kinds)
    for index, (kind, counts) in enumerate(zip(kinds, histogram.counts, strict=True)):
        places = [place + (index - (len(kinds) - 1) / 2) * width for place in range(len(counts))]
        axes.bar(places, counts, width, color=COLOURS[index % len(COLOURS)], label=_name(kind))
    edges = [place - 0.5 for place in range(len(histogram.labels) + 1)]
    axes.stairs(histogram.labels, edges, color=REFERENCE_COLOUR, linewidth=0.8, linestyle="--", label="labels")
    axes.set_title(_name(histogram.title), fontsize=9)
    axes.set_xticks([])


def _known(values: Sequence[float | None], otherwise: float = math.nan) -> list[float]:
    """Matplotlib leaves out what is not a number."""
    return [otherwise if value is None else value for value in values]


def to_svg(drawing: Drawing) -> str:
    """The drawing as an `<svg>` element that takes its ink, lines and background from the page around it."""
    text = to_bytes(drawing, "svg", transparent=True).decode()
    for fixed, from_page in {_INK: "currentColor", _GRID: "var(--line)", _PAPER: "var(--paper)"}.items():
        text = text.replace(f": {fixed}", f": {from_page}")
    return text[text.index("<svg") :]


def to_bytes(drawing: Drawing, suffix: str, *, transparent: bool = False) -> bytes:
    """The drawing as a file of one of the `FORMATS`; the same drawing gives the same bytes."""
    buffer = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix)
    with matplotlib.rc_context(_STYLE):
        drawing.savefig(buffer, format=suffix, dpi=_PER_INCH, metadata=metadata, transparent=transparent)
    return buffer.getvalue()
