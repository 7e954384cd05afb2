"""Tables as data: metrics, cells with their spread over seeds, columns and rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NamedTuple, TypeVar

from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import Measurement, RunRecord, Tenth

Better = Literal["higher", "lower", ""]
S = TypeVar("S")


class Metric(NamedTuple):
    """A measured number, and how it is shown."""

    field: str
    title: str
    short: str = ""
    factor: float = 1.0
    decimals: int = 3
    better: Better = "lower"
    by_tenth: bool = False
    """Whether it is the mean of the same number over the tenths of the stream."""
    of_stream: bool = False
    """Whether it is only known of a whole stream, also of one that joins corruptions."""

    @property
    def heading(self) -> str:
        """The title where a sentence begins."""
        return f"{self.title[0].upper()}{self.title[1:]}"

    def of(self, measured: Measurement | Tenth) -> float:
        return self.factor * float(getattr(measured, self.field))


ACCURACY = Metric("accuracy", "accuracy (%)", "accuracy", 100.0, 1, "higher", by_tenth=True)
BIAS = Metric("bias", "prediction bias (L1)", "L1")
CALIBRATION = Metric("ece", "calibration error (ECE)", "ECE")
LIKELIHOOD = Metric("nll", "negative log-likelihood (NLL)", "NLL")
RECALL_SPREAD = Metric("recall_sd", "s.d. of class recalls", "recall s.d.")
SECONDS = Metric("seconds", "seconds", decimals=2, of_stream=True)
BETA = Metric("mean_beta", "beta", decimals=2, better="")

NOT_RUN, DIVERGED = "not run", "diverged"


class Printed(NamedTuple):
    """A number as the paper prints it."""

    value: float
    sd: float | None = None


@dataclass(frozen=True)
class Cell:
    """A number over seeds, beside what the paper printed for it."""

    value: float | None = None
    sd: float | None = None
    """Over seeds; None for a single one."""
    paper: Printed | None = None
    why_empty: str = NOT_RUN
    """What to say where there is no value."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """What the value is the mean of."""
    by_tenth: Sequence[float] = ()
    """The value on each tenth of the stream, where there is one seed and the value is their mean."""
    margin: float | None = None
    """Of a difference: half of its 95 % confidence interval; None where records do not tell."""

    def __sub__(self, other: Cell) -> Cell:
        """The difference, seed by seed over the seeds that both have; the paper's, too, where it printed both.

        Its margin is over these seeds. With one seed it is over the tenths of the stream, which have the same images in
        both.
        """
        paper = None
        if self.paper is not None and other.paper is not None:
            paper = Printed(round(self.paper.value - other.paper.value, 1))
        if self.value is None or other.value is None:
            return Cell(paper=paper, why_empty=self.why_empty if self.value is None else other.why_empty)
        paired = {seed: value - other.by_seed[seed] for seed, value in self.by_seed.items() if seed in other.by_seed}
        tenths = tuple(a - b for a, b in zip(self.by_tenth, other.by_tenth, strict=False))
        margin = half_interval(list(paired.values()) if len(paired) > 1 else tenths)
        return replace(over_seeds(paired), paper=paper, by_tenth=tenths, margin=margin)


def over_seeds(by_seed: Mapping[int, float]) -> Cell:
    """Mean and s.d. of one value per seed."""
    values = list(by_seed.values())
    if not values:
        return Cell()
    return Cell(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, by_seed=by_seed)


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 % quantiles, 1 to 9 degrees


def half_interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the mean, by Student's t; None for fewer than two values."""
    degrees = len(values) - 1
    if degrees < 1:
        return None
    quantile = _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else 1.96 + 2.37 / degrees + 2.82 / degrees**2
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def tenth_of(items: Sized) -> int:
    """How many a tenth of them are, rounded up."""
    return -(-len(items) // 10)


class Results(Generic[S]):
    """Looks up cells in records, for anything whose runs are known.

    Args:
        runs: the runs of a series on a corruption, one for each seed.
        records: those that there are, by key.
        diverged: keys of runs that gave no numbers.
    """

    def __init__(
        self,
        runs: Callable[[S, str], Sequence[RunConfig]],
        records: Mapping[str, RunRecord],
        diverged: Collection[str] = (),
    ):
        self._runs = runs
        self._records = records
        self._diverged = diverged

    def records(self, series: S, corruption: str) -> list[RunRecord]:
        """One for each seed; none at all unless every seed was run."""
        found = [self._records.get(config.key) for config in self._runs(series, corruption)]
        complete = [record for record in found if record is not None]
        return complete if len(complete) == len(found) else []

    def measured(self, series: S, corruption: str, measure: Callable[[Measurement], float]) -> Cell:
        """Mean and s.d. over seeds of something measured on one corruption."""
        records = self.records(series, corruption)
        if not records:
            return self.empty(series, [corruption])
        return over_seeds({record.config.stream.seed: measure(record.by_corruption[corruption]) for record in records})

    def cell(self, series: S, metric: Metric, corruption: str) -> Cell:
        """Mean and s.d. over seeds on one corruption."""
        records = self.records(series, corruption)
        if metric.of_stream and records:
            return over_seeds({record.config.stream.seed: metric.of(record) for record in records})
        cell = self.measured(series, corruption, metric.of)
        if not metric.by_tenth or len(records) != 1 or records[0].domains:
            return cell
        return replace(cell, by_tenth=tuple(map(metric.of, records[0].tenths)))

    def mean(self, series: S, metric: Metric, corruptions: Sequence[str]) -> Cell:
        """Over corruptions, then mean and s.d. over the seeds that all of them were run with."""
        mean = self._over_corruptions(series, metric, corruptions, statistics.fmean)
        tenths = zip(*(self.cell(series, metric, corruption).by_tenth for corruption in corruptions), strict=False)
        return replace(mean, by_tenth=tuple(map(statistics.fmean, tenths)))

    def tail(self, series: S, metric: Metric, corruptions: Sequence[str]) -> Cell:
        """The mean of the worst tenth of the corruptions, whichever these are, then over seeds."""

        def mean_of_worst(values: Iterable[float]) -> float:
            worst_first = sorted(values, reverse=metric.better == "lower")
            return statistics.fmean(worst_first[: tenth_of(corruptions)])

        return self._over_corruptions(series, metric, corruptions, mean_of_worst)

    def _over_corruptions(
        self, series: S, metric: Metric, corruptions: Sequence[str], combine: Callable[[Iterable[float]], float]
    ) -> Cell:
        cells = [self.cell(series, metric, corruption) for corruption in corruptions]
        seeds = [seed for seed in cells[0].by_seed if all(seed in cell.by_seed for cell in cells)] if cells else []
        if not seeds:
            return self.empty(series, corruptions)
        return over_seeds({seed: combine(cell.by_seed[seed] for cell in cells) for seed in seeds})

    def empty(self, series: S, corruptions: Sequence[str]) -> Cell:
        """A cell that says why it is empty."""
        keys = {config.key for corruption in corruptions for config in self._runs(series, corruption)}
        return Cell(why_empty=NOT_RUN if keys.isdisjoint(self._diverged) else DIVERGED)


@dataclass(frozen=True)
class Column:
    title: str
    decimals: int = 1
    better: Better = ""
    is_delta: bool = False
    """A difference: shown with its sign and its margin, and coloured by what is better where it exceeds that."""

    @classmethod
    def of(cls, metric: Metric, title: str) -> Column:
        return cls(title, metric.decimals, metric.better)

    @classmethod
    def delta(cls, metric: Metric, title: str = "Δ") -> Column:
        return cls(title, metric.decimals, metric.better, is_delta=True)


class Row(NamedTuple):
    name: str
    cells: Sequence[Cell]
    group: str = ""
    """Given where a group of rows begins."""
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
    """Ends the name of its files, where there are several tables."""


def side_by_side(tables: Mapping[str, Table]) -> Table:
    """Tables with the same rows as one, their columns told apart by the names of the tables."""
    first = next(iter(tables.values()))
    columns = [replace(c, title=f"{name}: {c.title}") for name, table in tables.items() for c in table.columns]
    rows = [
        row._replace(cells=[cell for table in tables.values() for cell in table.rows[index].cells])
        for index, row in enumerate(first.rows)
    ]
    return replace(first, columns=columns, rows=rows)
