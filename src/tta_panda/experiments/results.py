"""What an experiment gives: tables and figures as data, which `reporting` writes, prints and draws."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from tta_panda.experiments.paper import Printed

Better = Literal["higher", "lower", ""]


class Metric(NamedTuple):
    """A number of a record, and how it is shown."""

    field: str
    title: str
    short: str = ""
    factor: float = 1.0
    decimals: int = 3
    better: Better = "lower"


ACCURACY = Metric("accuracy", "accuracy (%)", "accuracy", 100.0, 1, "higher")
BIAS = Metric("l1", "prediction bias (L1)", "L1")
CALIBRATION = Metric("ece", "calibration error (ECE)", "ECE")
LIKELIHOOD = Metric("nll", "negative log-likelihood (NLL)", "NLL")
RECALL_SPREAD = Metric("recall_sd", "s.d. of class recalls", "recall s.d.")


NOT_RUN, DIVERGED = "not run", "diverged"


@dataclass(frozen=True)
class Cell:
    """A number over seeds, beside what the paper printed for it."""

    value: float | None = None
    sd: float | None = None
    """Over seeds; None for a single one."""
    paper: Printed | None = None
    why_empty: str = NOT_RUN
    """What to say where there is no value."""

    def __sub__(self, other: Cell) -> Cell:
        """The difference of the means; of the paper's too, where it printed both."""
        value = None if self.value is None or other.value is None else self.value - other.value
        paper = None
        if self.paper is not None and other.paper is not None:
            paper = Printed(round(self.paper.value - other.paper.value, 1))
        return Cell(value, None, paper, self.why_empty if self.value is None else other.why_empty)


def over_seeds(values: Sequence[float]) -> Cell:
    """Mean and s.d. of one value per seed."""
    return Cell(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Column:
    title: str
    decimals: int = 1
    better: Better = ""
    is_delta: bool = False
    """A difference: shown with its sign, and coloured by what is better."""


class Row(NamedTuple):
    name: str
    cells: Sequence[Cell]
    group: str = ""
    is_mean: bool = False


@dataclass(frozen=True)
class Table:
    """Rows and columns of numbers."""

    title: str
    rows_are: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    of_paper: bool = False
    """Whether every number in it is the paper's own, of another model and other data."""
    name: str = ""
    """Ends the name of its files, where an experiment has several tables."""


def side_by_side(tables: Mapping[str, Table]) -> Table:
    """Tables with the same rows as one, their columns told apart by the names of the tables."""
    first = next(iter(tables.values()))
    columns = [replace(c, title=f"{name}: {c.title}") for name, table in tables.items() for c in table.columns]
    rows = [
        row._replace(cells=[cell for table in tables.values() for cell in table.rows[index].cells])
        for index, row in enumerate(first.rows)
    ]
    return replace(first, columns=columns, rows=rows)


@dataclass(frozen=True)
class Line:
    """Points over x. Lines of one hue belong together: a method, and what it is compared with."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    sds: Sequence[float | None] = ()
    hue: int = 0
    kind: Literal["line", "level", "points"] = "line"
    """`level`: a dashed line without markers, as for a value that does not depend on x."""


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
    """Everything that came out of an experiment."""

    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = field(default=())
    """What a reader has to know to read the numbers rightly."""
