"""Figures as data, drawn with matplotlib to be readable in print, on phones, and by colour-blind readers."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from tta_panda.escapes import printable
from tta_panda.reporting.cells import Cell, Results
from tta_panda.reporting.tables import Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

S = TypeVar("S")
LineKind = Literal["line", "curve", "level", "points"]
"""Joined markers with bars of one s.d.; a curve without markers; a dashed line for a value that does not depend on x;
separate points."""


class Line(NamedTuple):
    """Cells over x. Lines of one hue belong together: a method, and what it is compared with."""

    label: str
    cells: Mapping[float, Cell]
    hue: int = 0
    kind: LineKind = "line"


@dataclass(frozen=True)
class Panel:
    """Lines over one x axis."""

    x: str
    y: str
    lines: Sequence[Line]
    title: str = ""
    log_x: bool = False
    names: Mapping[float, str] = field(default_factory=dict)
    """Labels of the x axis by position, for instance of consecutive domains."""


@dataclass(frozen=True)
class LineFigure:
    """Lines in one or several panels."""

    caption: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class DotFigure:
    """The numbers of a table as dots, row by row without means, and optionally a level as a line.

    Differences are shown only if the table has no other columns.
    """

    caption: str
    x: str
    table: Table
    level: tuple[str, float] | None = None

    @property
    def rows(self) -> list[Row]:
        return [row for row in self.table.rows if not row.is_mean]

    @property
    def dots(self) -> dict[str, list[Cell]]:
        """Cells of the rows, by the title of their column."""
        columns = [(index, column) for index, column in enumerate(self.table.columns) if column.better]
        shown = [each for each in columns if not each[1].is_delta] or columns
        return {column.title: [row.cells[index] for row in self.rows] for index, column in shown}


@dataclass(frozen=True)
class HistogramFigure:
    """How often classes are predicted and how often they occur: one histogram per corruption."""

    caption: str
    kinds: Sequence[str]
    """Names of the series whose predictions are counted."""
    classes: Sequence[str]
    histograms: Mapping[str, Sequence[Sequence[int]]]
    """Counts by class, for every kind and last for the labels, by title of the histogram."""


Figure = LineFigure | DotFigure | HistogramFigure


def class_histograms(
    results: Results[S], series: Mapping[str, S], corruptions: Sequence[str], caption: str
) -> HistogramFigure:
    """Make histograms of predicted classes, one for each corruption on which all of the series were run."""
    histograms: dict[str, Sequence[Sequence[int]]] = {}
    classes: Sequence[str] = ()
    for corruption in corruptions:
        found = [results.records(each, corruption) for each in series.values()]
        if all(found):
            classes = found[0][0].class_names
            first = [records[0].by_corruption[corruption] for records in found]  # of one seed, without averaging
            counts = [*(measured.predicted_counts for measured in first), first[0].label_counts]
            histograms[corruption.replace("_", " ")] = counts
    return HistogramFigure(caption, list(series), classes, histograms)


# Okabe & Ito: safe for the colour-blind; markers differ as well, for black and white.
COLOURS = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
PLAIN_COLOUR, PANDA_COLOUR = COLOURS[:2]
MARKERS = ("o", "s", "^", "D", "v", "P")
REFERENCE_COLOUR = "#7a7f87"
_INK, _GRID, _PAPER = "#1c2430", "#e3e7ec", "#ffffff"

FORMATS = ("svg", "png", "pdf")

_WIDTH = 4.2  # inches: one column of a paper, or a phone in portrait format
_MAX_NAMED_CLASSES = 20
_MAX_NAME_LENGTH = 28
_PER_INCH = 160
_HISTOGRAMS = (2, 2)  # rows and columns of one drawing

_STYLE: Any = {
    "text.parse_math": False,  # a dollar sign in a name is literal
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
    """Draw a figure as one or several narrow drawings, which a page places next to or below each other."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        if isinstance(figure, LineFigure):
            return [_draw_panel(panel) for panel in figure.panels]
        return [_draw_dots(figure)] if isinstance(figure, DotFigure) else _draw_histograms(figure)


def _drawing(height: float) -> Drawing:
    from matplotlib.figure import Figure as Drawing

    return Drawing(figsize=(_WIDTH, height), layout="constrained")


def _name(text: str) -> str:
    """Format a name on one line, truncated if it is too long for a drawing."""
    shown = printable(text)
    return shown if len(shown) <= _MAX_NAME_LENGTH else f"{shown[: _MAX_NAME_LENGTH - 1]}…"


def _draw_panel(panel: Panel) -> Drawing:
    drawing = _drawing(3.2)
    axes = drawing.subplots()
    drawn = [_draw_line(axes, line) for line in panel.lines]
    if panel.log_x:
        values = sorted({x for line in panel.lines for x in line.cells})
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
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
    """Draw a line, and return its handle for the legend."""
    colour, marker = COLOURS[line.hue % len(COLOURS)], MARKERS[line.hue % len(MARKERS)]
    xs, heights = list(line.cells), _values(line.cells.values())
    if line.kind == "level":
        return axes.plot(xs, heights, color=colour, linestyle="--", linewidth=1.2)[0]
    if line.kind == "points":
        return axes.plot(xs, heights, marker, color=colour, markersize=5, markerfacecolor=_PAPER)[0]
    if line.kind == "curve":
        return axes.plot(xs, heights, color=colour, linewidth=1.5)[0]
    errors = _errors(line.cells.values())
    return axes.errorbar(xs, heights, errors, color=colour, marker=marker, markersize=4.5, linewidth=1.5, capsize=2.5)


def _draw_dots(figure: DotFigure) -> Drawing:
    names, dots = [_name(row.name.replace("_", " ")) for row in figure.rows], figure.dots
    drawing = _drawing(0.9 + max(0.22, 0.055 * len(dots)) * len(names) + 0.16 * len(dots))
    axes = drawing.subplots()
    for index, (label, cells) in enumerate(dots.items()):
        # Slightly apart, so that equal values do not hide each other.
        offset = min(0.2, 0.8 / len(dots)) * (index - (len(dots) - 1) / 2)
        places = [row + offset for row in range(len(names))]
        axes.errorbar(
            _values(cells),
            places,
            xerr=_errors(cells),
            fmt=MARKERS[index % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            markersize=4.5,
            elinewidth=0.8,
            label=_name(label),
        )
    for row, side_by_side in enumerate(zip(*dots.values(), strict=True)):
        if known := [cell.value for cell in side_by_side if cell.value is not None]:
            axes.hlines(row, min(known), max(known), color=REFERENCE_COLOUR, linewidth=0.8, zorder=1)
    if figure.level is not None:
        axes.axvline(figure.level[1], color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label=figure.level[0])
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)  # from top to bottom
    axes.set_axisbelow(True)
    axes.grid(visible=True)
    axes.set_xlabel(figure.x)
    drawing.legend(loc="outside upper left", ncols=1 + (len(dots) > 2), frameon=False, fontsize=8)
    return drawing


def _draw_histograms(figure: HistogramFigure) -> list[Drawing]:
    most = max((max(map(max, counts)) for counts in figure.histograms.values()), default=1)
    size, found = math.prod(_HISTOGRAMS), list(figure.histograms.items())
    pieces = [found[start : start + size] for start in range(0, len(found), size)]
    return [_draw_histogram_grid(figure, piece, 1.05 * most) for piece in pieces]


def _draw_histogram_grid(
    figure: HistogramFigure, histograms: Sequence[tuple[str, Sequence[Sequence[int]]]], top: float
) -> Drawing:
    down, across = _HISTOGRAMS
    drawing = _drawing(1.35 * down + 1.6)
    grid = drawing.subplots(down, across, sharey=True, squeeze=False)
    for axes in grid.flat[len(histograms) :]:
        axes.set_visible(False)
    for axes, (title, counts) in zip(grid.flat, histograms, strict=False):
        _draw_histogram(axes, figure.kinds, *counts)
        axes.set_title(_name(title), fontsize=9)
    grid[0, 0].set_ylim(0, top)
    if len(figure.classes) <= _MAX_NAMED_CLASSES:
        for axes in grid.flat[max(0, len(histograms) - across) : len(histograms)]:  # the lowest of each column
            axes.set_xticks(range(len(figure.classes)), map(_name, figure.classes), rotation=90, fontsize=8)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    drawing.supylabel("predicted images", fontsize=9)
    return drawing


def _draw_histogram(axes: Axes, kinds: Sequence[str], *counts: Sequence[int]) -> None:
    *predicted, labels = counts
    width = 0.8 / len(kinds)
    for index, (kind, heights) in enumerate(zip(kinds, predicted, strict=True)):
        places = [place + (index - (len(kinds) - 1) / 2) * width for place in range(len(heights))]
        axes.bar(places, heights, width, color=COLOURS[index % len(COLOURS)], label=_name(kind))
    edges = [place - 0.5 for place in range(len(labels) + 1)]
    axes.stairs(labels, edges, color=REFERENCE_COLOUR, linewidth=0.8, linestyle="--", label="labels")
    axes.set_xticks([])


def _values(cells: Iterable[Cell]) -> list[float]:
    """The values of cells, with NaN for empty ones, which matplotlib omits."""
    return [math.nan if cell.value is None else cell.value for cell in cells]


def _errors(cells: Iterable[Cell]) -> list[float]:
    return [cell.sd or 0.0 for cell in cells]


def to_svg(drawing: Drawing) -> str:
    """Convert a drawing to an `<svg>` element that uses the text, line and background colours of its page."""
    text = to_bytes(drawing, "svg", transparent=True).decode()
    for fixed, from_page in {_INK: "currentColor", _GRID: "var(--line)", _PAPER: "var(--paper)"}.items():
        text = text.replace(f": {fixed}", f": {from_page}")
    return text[text.index("<svg") :]


def to_bytes(drawing: Drawing, suffix: str, *, transparent: bool = False) -> bytes:
    """Convert a drawing to a file in one of the `FORMATS`; the same drawing gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix)
    with matplotlib.rc_context(_STYLE):
        drawing.savefig(buffer, format=suffix, dpi=_PER_INCH, metadata=metadata, transparent=transparent)
    return buffer.getvalue()
