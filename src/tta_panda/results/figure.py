"""Figures as data, and what an experiment or a comparison gives in all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    log_y: bool = False
    from_zero: bool = False
    """Whether y begins at zero, so that small changes look small."""
    names: Mapping[float, str] = field(default_factory=dict)
    """Of parts of the x axis, each in the place of its number: domains, say, that follow each other."""


@dataclass(frozen=True)
class LineFigure:
    """Lines in one or several panels."""

    caption: str
    panels: Sequence[Panel]
    name: str = ""


class Dots(NamedTuple):
    label: str
    values: Sequence[float | None]
    sds: Sequence[float | None] = ()

    @classmethod
    def of(cls, label: str, cells: Iterable[Cell]) -> Dots:
        return cls(label, *_values_and_sds(cells))


@dataclass(frozen=True)
class DotFigure:
    """Rows with a dot of each kind; a level that they are compared with as a line."""

    caption: str
    x: str
    rows: Sequence[str]
    dots: Sequence[Dots]
    level: tuple[str, float] | None = None
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


Figure = LineFigure | DotFigure | HistogramFigure


@dataclass(frozen=True)
class Result:
    """Tables and figures that belong together."""

    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    """What a reader has to know to read the numbers rightly."""
