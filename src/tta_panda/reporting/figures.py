"""Draws figures given as data, with matplotlib: readable in print, and by the colour-blind."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from tta_panda.results.figure import BarFigure, Figure, HistogramFigure, Line, LineFigure, Panel

# Okabe & Ito: told apart by the colour-blind; markers and hatches tell them apart in black and white, too.
COLOURS = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
PLAIN_COLOUR, PANDA_COLOUR = COLOURS[:2]
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
REFERENCE_COLOUR = "#555555"

FORMATS = ("svg", "png", "pdf")

_WIDTH = 10.6  # inches: about the text width of the page
_MOST_NAMED_CLASSES = 20
_PER_INCH = 160

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tta-panda",  # same figure, same bytes
    "pdf.fonttype": 42,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid.axis": "y",
    "grid.color": "#e3e7ec",
    "hatch.linewidth": 0.6,
}


def draw(figure: Figure) -> Drawing:
    with matplotlib.rc_context(_STYLE):
        if isinstance(figure, LineFigure):
            return _draw_lines(figure)
        return _draw_bars(figure) if isinstance(figure, BarFigure) else _draw_histograms(figure)


def _draw_lines(figure: LineFigure) -> Drawing:
    width = min(_WIDTH, 5.3 * len(figure.panels))
    drawing = Drawing(figsize=(width, 3.3), layout="constrained")
    for axes, panel in zip(drawing.subplots(1, len(figure.panels), squeeze=False).flat, figure.panels, strict=True):
        _draw_panel(axes, panel)
    return drawing


def _draw_panel(axes: Axes, panel: Panel) -> None:
    drawn = [_draw_line(axes, line) for line in panel.lines]
    if panel.log_x:
        values = sorted({x for line in panel.lines for x in line.xs})
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    axes.set_axisbelow(True)
    axes.grid(visible=True)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(panel.title, fontsize=9.5)
    axes.legend(drawn, [line.label for line in panel.lines], frameon=False, fontsize=8)


def _draw_line(axes: Axes, line: Line) -> Any:
    """Draws it, and gives what a legend shows of it."""
    colour, marker = COLOURS[line.hue % len(COLOURS)], MARKERS[line.hue % len(MARKERS)]
    heights = _known(line.ys)
    if line.kind == "level":
        return axes.plot(line.xs, heights, color=colour, linestyle="--", linewidth=1.2)[0]
    if line.kind == "points":
        return axes.plot(line.xs, heights, marker, color=colour, markersize=5, markerfacecolor="white")[0]
    if not line.sds:  # a closed form, which points lie upon
        return axes.plot(line.xs, heights, color=colour, linewidth=1.5)[0]
    errors = _known(line.sds, 0.0)
    return axes.errorbar(
        line.xs, heights, errors, color=colour, marker=marker, markersize=4.5, linewidth=1.5, capsize=2.5
    )


def _draw_bars(figure: BarFigure) -> Drawing:
    drawing = Drawing(figsize=(_WIDTH, 3.3), layout="constrained")
    axes = drawing.subplots()
    width = 0.8 / len(figure.bars)
    for index, bars in enumerate(figure.bars):
        places = [group + (index - (len(figure.bars) - 1) / 2) * width for group in range(len(figure.groups))]
        axes.bar(
            places,
            _known(bars.heights),
            width * 0.94,
            yerr=_known(bars.sds, 0.0) if bars.sds else None,
            error_kw={"elinewidth": 0.8, "capsize": 1.5},
            color=COLOURS[index % len(COLOURS)],
            hatch=HATCHES[index % len(HATCHES)],
            edgecolor="white",
            linewidth=0.3,
            label=bars.label,
        )
    if figure.level is not None:
        axes.axhline(figure.level[1], color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label=figure.level[0])
    slanted = max(map(len, figure.groups)) > 8
    axes.set_xticks(
        range(len(figure.groups)), figure.groups, rotation=35 * slanted, ha="right" if slanted else "center"
    )
    if not figure.from_zero:
        _zoom(axes, [h for bars in figure.bars for h in bars.heights if h is not None])
    axes.set_ylabel(figure.y)
    axes.margins(x=0.01)
    drawing.legend(loc="outside upper center", ncols=5, frameon=False)
    return drawing


def _zoom(axes: Axes, heights: Sequence[float]) -> None:
    """Begin a little below the lowest bar."""
    if heights:
        margin = max(0.5, 0.35 * (max(heights) - min(heights)))
        axes.set_ylim(max(0.0, min(heights) - margin), max(heights) + margin / 2)


def _draw_histograms(figure: HistogramFigure) -> Drawing:
    across = 4
    down = max(1, math.ceil(len(figure.histograms) / across))
    drawing = Drawing(figsize=(_WIDTH, 1.35 * down + 1.6), layout="constrained")
    grid = drawing.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(figure.histograms) :]:
        axes.set_visible(False)
    width = 0.8 / max(1, len(figure.kinds))
    for axes, histogram in zip(grid.flat, figure.histograms, strict=False):
        places = range(len(histogram.labels))
        for index, (kind, counts) in enumerate(zip(figure.kinds, histogram.counts, strict=True)):
            offset = (index - (len(figure.kinds) - 1) / 2) * width
            axes.bar([place + offset for place in places], counts, width, color=COLOURS[index], label=kind)
        edges = [place - 0.5 for place in range(len(histogram.labels) + 1)]
        axes.stairs(histogram.labels, edges, color=REFERENCE_COLOUR, linewidth=0.8, linestyle="--", label="labels")
        axes.set_title(histogram.title, fontsize=9)
        axes.set_xticks([])
    if len(figure.classes) <= _MOST_NAMED_CLASSES:
        shown = len(figure.histograms)
        for axes in grid.flat[max(0, shown - across) : shown]:  # the lowest panel of each column
            axes.set_xticks(range(len(figure.classes)), figure.classes, rotation=90, fontsize=8)
            axes.tick_params(labelbottom=True)
    drawing.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    drawing.supylabel("predicted images", fontsize=9)
    return drawing


def _known(values: Sequence[float | None], otherwise: float = math.nan) -> list[float]:
    """Matplotlib leaves out what is not a number."""
    return [otherwise if value is None else value for value in values]


def to_svg(drawing: Drawing) -> str:
    """The figure as an `<svg>` element."""
    text = to_bytes(drawing, "svg").decode()
    return text[text.index("<svg") :]


def to_bytes(drawing: Drawing, suffix: str) -> bytes:
    """The figure as a file of one of the `FORMATS`; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix)
    with matplotlib.rc_context(_STYLE):
        drawing.savefig(buffer, format=suffix, dpi=_PER_INCH, metadata=metadata)
    return buffer.getvalue()
