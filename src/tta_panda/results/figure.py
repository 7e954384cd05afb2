"""Figures as data, and what an experiment or a comparison gives in all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tta_panda.results.table import Cell, Table

LineKind = Literal["line", "level", "points"]


def _values_and_sds(cells: Iterable[Cell]) -> tuple[list[float | None], list[float | None]]:
    found = list(cells)
    return [cell.value for cell in found], [cell.sd for cell in found]


@dataclass(frozen=True)
class Line:
    """Points over x. Lines of one hue belong together: a method, and what it is compared with."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    sds: Sequence[float | None] = ()
    hue: int = 0
    kind: LineKind = "line"
    """`level`: a dashed line without markers, as for a value that does not depend on x."""

    @classmethod
    def of(cls, label: str, cells: Mapping[float, Cell], hue: int = 0, kind: LineKind = "line") -> Line:
        return cls(label, list(cells), *_values_and_sds(cells.values()), hue, kind)


@dataclass(frozen=True)
class Panel:
    x: str
    y: str
    lines: Sequence[Line]
    title: str = ""
    log_x: bool = False


@dataclass(frozen=True)
class LineFigure:
    """Panels side by side."""

    caption: str
    panels: Sequence[Panel]
    name: str = ""


class Bars(NamedTuple):
    label: str
    heights: Sequence[float | None]
    sds: Sequence[float | None] = ()

    @classmethod
    def of(cls, label: str, cells: Iterable[Cell]) -> Bars:
        return cls(label, *_values_and_sds(cells))


@dataclass(frozen=True)
class BarFigure:
    """Groups of bars, one of each kind in a group; a level that they are compared with as a line."""

    caption: str
    y: str
    groups: Sequence[str]
    bars: Sequence[Bars]
    level: tuple[str, float] | None = None
    from_zero: bool = True
    """Accuracies that differ little are better seen from above zero."""
    name: str = ""


class Histogram(NamedTuple):
    title: str
    counts: Sequence[Sequence[int]]
    """By kind, then by class."""
    labels: Sequence[int]


@dataclass(frozen=True)
class HistogramFigure:
    """How often each class is predicted, panel by panel, and how often it occurs."""

    caption: str
    kinds: Sequence[str]
    classes: Sequence[str]
    histograms: Sequence[Histogram]
    name: str = ""


Figure = LineFigure | BarFigure | HistogramFigure


@dataclass(frozen=True)
class Result:
    """Tables and figures that belong together."""

    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    """What a reader has to know to read the numbers rightly."""
