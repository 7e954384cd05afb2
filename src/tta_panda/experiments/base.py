"""Experiments: the runs that a table or a figure needs, and how their records are shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.errors import InvalidInputError
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import Encoded, RunRecord
from tta_panda.experiments.printed import MEAN, printed_accuracy
from tta_panda.experiments.setup import Series, Setup
from tta_panda.methods import MethodName
from tta_panda.reporting.cells import ACCURACY, Cell, Metric, Results, over_seeds
from tta_panda.reporting.figures import Line, LineFigure, LineKind, Panel
from tta_panda.reporting.page import Section
from tta_panda.reporting.tables import Column, Row, Table, with_changes

Show = Callable[["ExperimentResults"], Section]
"""Function that makes tables, figures and notes from results; the experiment adds its name and title."""


@dataclass(frozen=True)
class Experiment:
    """A table or a figure by name."""

    name: str
    title: str
    about: str
    """What it shows, in one sentence."""
    rows: Callable[[Setup], Mapping[str, Sequence[Series]]]
    """The series that it compares, by row of its table or panel of its figure."""
    show: Show
    corruptions: Callable[[Setup], Sequence[str]] = lambda setup: CORRUPTIONS
    """The corruptions on which it compares them."""
    in_paper: str = ""
    """Its place in the paper; empty if it is not in the paper."""
    timed: bool = False
    """Whether its runs are timed, so that they must neither share passes nor run in parallel."""
    by_method: bool = False
    """Whether each of its rows belongs to one method, so that users can choose some of them."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Its own defaults of `data`, `model`, `preset`, `limit` and `seeds`. If it has any, it runs only when named."""

    def needs(self, setup: Setup) -> str:
        """The data and machine that it requires, in a few words."""
        names = self.corruptions(setup)
        corrupted = [name for name in names if name != CLEAN]
        parts = ["clean images"] * (CLEAN in names)
        if corrupted:
            parts.append(corrupted[0].replace("_", " ") if len(corrupted) == 1 else f"{len(corrupted)} corruptions")
        own = [f"{self.defaults[name]}" for name in ("data", "model", "preset") if name in self.defaults]
        return ", ".join(own + parts + ["an idle machine"] * self.timed) or "nothing"

    def chosen_rows(self, setup: Setup) -> Mapping[str, Sequence[Series]]:
        """The rows of the methods that the user chose."""
        rows = self.rows(setup)
        if not setup.methods:
            return rows
        if not self.by_method:
            raise InvalidInputError(f"{self.name} compares a fixed set of methods: omit --method.")
        chosen = {label: row for label, row in rows.items() if MethodName.of(row[0].method).base in setup.methods}
        if not chosen:
            compared = dict.fromkeys(MethodName.of(row[0].method).base for row in rows.values())
            raise InvalidInputError(f"{self.name} has none of these methods; choose from {', '.join(compared)}.")
        return chosen

    def runs(self, setup: Setup) -> list[RunConfig]:
        """All runs that it shows, without duplicates."""
        rows = self.chosen_rows(setup).values()
        runs = {
            config.key: config
            for corruption in self.corruptions(setup)
            for row in rows
            for series in row
            for config in setup.runs(series, corruption)
        }
        return list(runs.values())

    def section(self, setup: Setup, records: Mapping[str, RunRecord], diverged: Collection[str] = ()) -> Section:
        """Make its tables and figures from the records that exist; cells without records are marked."""
        place = f"In the paper: {self.in_paper}" if self.in_paper else "Beyond the paper"
        source = f"{place}. tta-panda reproduce {self.name}"
        return replace(
            self.show(ExperimentResults(self, setup, records, diverged)),
            name=self.name,
            title=self.title,
            runs=self.runs(setup),
            about=self.about,
            source=source,
            figures_first=True,
        )


EXPERIMENTS: dict[str, Experiment] = {}
"""Experiments by name, registered by `experiment`."""


def experiment(
    name: str, title: str, about: str, rows: Callable[[Setup], Mapping[str, Sequence[Series]]], **more: Any
) -> Callable[[Show], Show]:
    """Register an experiment with the decorated function as `show`; arguments are the fields of `Experiment`."""

    def register(show: Show) -> Show:
        EXPERIMENTS[name] = Experiment(name, title, about, rows, show, **more)
        return show

    return register


class ExperimentResults(Results[Series]):
    """The results of an experiment."""

    def __init__(
        self, experiment: Experiment, setup: Setup, records: Mapping[str, RunRecord], diverged: Collection[str] = ()
    ):
        super().__init__(records, diverged)
        self.setup = setup
        self.about = experiment.about
        self.rows = experiment.chosen_rows(setup)
        self.series = [series for row in self.rows.values() for series in row]
        self.corruptions = [name for name in experiment.corruptions(setup) if name != CLEAN]
        """Corruptions over which means are taken."""
        self.where = f"mean of {len(self.corruptions)} corruptions"

    def runs(self, series: Series, corruption: str) -> Sequence[RunConfig]:
        return self.setup.runs(series, corruption)

    def cell(self, series: Series, metric: Metric, corruption: str = MEAN) -> Cell:
        """Mean and s.d. over seeds on one corruption, or of the means over all corruptions of the experiment."""
        if corruption == MEAN:
            return self.mean(series, metric, self.corruptions)
        return super().cell(series, metric, corruption)

    def cells_by_row(self, find: Callable[[Series], Cell] | None = None) -> dict[str, list[Cell]]:
        """Find a cell for each series of every row, by default the mean accuracy."""
        find = find or (lambda series: self.cell(series, ACCURACY))
        return {label: [find(series) for series in row] for label, row in self.rows.items()}

    def accuracy(self, series: Series, corruption: str = MEAN) -> Cell:
        """Our accuracy, together with the paper's for the same setting, if there is one."""
        cell = self.cell(series, ACCURACY, corruption)
        method = MethodName.of(series.method)
        if method.debias and self.setup.beta != "paper":
            return cell
        replaced = ("destroy", "none") in series.options
        name = f"{method.base}+offset" if replaced else series.method
        return replace(cell, paper=printed_accuracy(self.setup.benchmark, name, corruption))

    def by_tenth(self, series: Series, corruption: str, metric: Metric) -> list[Cell]:
        """Cells over seeds, one for each tenth of a stream."""
        records = self.records(series, corruption)
        seeds = [record.config.stream.seed for record in records]
        return [
            over_seeds({seed: metric.of(tenth) for seed, tenth in zip(seeds, tenths, strict=True)})
            for tenths in zip(*(record.tenths for record in records), strict=True)
        ]

    def encoded_per_image(self, series: Series, *kinds: Encoded) -> Cell:
        """Number of encoder passes per image of the streams."""

        def encoded(record: RunRecord) -> float:
            batches = math.ceil(record.samples / record.config.stream.batch_size)
            return sum(record.passes[kind] for kind in kinds) * batches / record.samples

        records = [self.records(series, corruption) for corruption in self.corruptions]
        if not all(records):
            return self.empty(series, self.corruptions)
        return Cell(statistics.fmean(encoded(record) for found in records for record in found))

    def quick_notes(self) -> list[str]:
        """A note if a quick look omits corruptions."""
        complete = len(self.corruptions) == len(CORRUPTIONS)
        return [] if complete else [f"Quick look: only {', '.join(self.corruptions)}."]


class SweepLine(NamedTuple):
    """A method over the values of an option: a line of a figure and a column of its table."""

    method: str
    hue: int = 0
    is_level: bool = False
    """Whether it does not depend on the option."""
    changes: Mapping[str, Any] = {}
    """Other options of the method."""
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.method


@dataclass(frozen=True)
class Sweep:
    """Methods over the values of an option: a panel of a figure, and a table."""

    x: str
    option: str
    values: Callable[[Setup], Sequence[float]]
    lines: Callable[[Setup], Sequence[SweepLine]]
    title: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Options of all lines."""

    def series(self, setup: Setup, line: SweepLine, value: float) -> Series:
        """The series of a line at a value; with beta 0, that of the plain method."""
        if (self.option, value) == ("beta", 0) and not line.is_level:
            return setup.series(MethodName.of(line.method).base)
        varied = {} if line.is_level else {self.option: value}
        return setup.series(line.method, **{**self.changes, **line.changes, **varied})


def sweep_experiment(
    name: str,
    title: str,
    about: str,
    sweeps: Sequence[Sweep],
    *,
    log_x: bool = True,
    note: str = "",
    search: Callable[[ExperimentResults], Table] | None = None,
    **more: Any,
) -> None:
    """Register an experiment: mean accuracy over the values of an option, as lines and as tables.

    `search` adds a table; `more` are fields of `Experiment`.
    """

    def rows(setup: Setup) -> dict[str, list[Series]]:
        return {
            f"{sweep.title} {line.name}".strip(): [sweep.series(setup, line, x) for x in sweep.values(setup)]
            for sweep in sweeps
            for line in sweep.lines(setup)
        }

    @experiment(name, title, about, rows, corruptions=Setup.sensitivity_corruptions, **more)
    def show(results: ExperimentResults) -> Section:
        panels, tables = [], []
        for index, sweep in enumerate(sweeps):
            xs, lines = sweep.values(results.setup), []
            for line in sweep.lines(results.setup):
                row = results.rows[f"{sweep.title} {line.name}".strip()]
                cells = [results.cell(each, ACCURACY) for each in row]
                kind: LineKind = "level" if line.is_level else "line"
                lines.append(Line(line.name, dict(zip(xs, cells, strict=True)), line.hue, kind))
            panels.append(Panel(sweep.x, ACCURACY.title, lines, sweep.title, log_x))
            heading = f"{sweep.title or title}: accuracy (%), {results.where}"
            columns = [Column.of(ACCURACY, line.label) for line in lines]
            tables.append(line_table(heading, sweep.x, lines, columns, str(index + 1) if index else ""))
        caption = f"{about} {results.where.capitalize()}; bars are one s.d. over seeds."
        tables += [search(results)] if search else []
        return Section(tables, [LineFigure(caption, panels)], [*results.quick_notes(), *([note] if note else [])])


def line_table(title: str, x: str, lines: Sequence[Line], columns: Sequence[Column], name: str = "") -> Table:
    """Make a table whose columns are lines over the same x."""
    rows = [Row(f"{place:g}", [line.cells[place] for line in lines]) for place in lines[0].cells]
    return Table(title, x, columns, rows, name=name)


def changes_table(
    title: str,
    rows_are: str,
    variants: Sequence[str],
    rows: Mapping[str, Sequence[Cell]],
    values: bool = True,
    name: str = "",
) -> Table:
    """Make a table of the plain accuracy and of each variant's with its change; without `values`, only of the changes.

    Args:
        variants: titles of the variants.
        rows: cells of the plain method and of each variant.
    """
    columns = [Column.of(ACCURACY, "plain")]
    for variant in variants:
        own = [Column.of(ACCURACY, variant), Column.delta(ACCURACY)]
        columns += own if values else [Column.delta(ACCURACY, f"Δ {variant}")]
    filled = []
    for label, (plain, *others) in rows.items():
        cells = with_changes(plain, *others)
        filled.append(Row(label, cells if values else [plain, *cells[2::2]]))
    return Table(title, rows_are, columns, filled, name=name)
