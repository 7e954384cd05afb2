"""Cells of tables: metrics and their means over seeds, computed from records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NamedTuple, TypeVar

from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import Measurement, RunRecord

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
    of_stream: bool = False
    """Whether it is known only for a whole stream, even if the stream joins corruptions."""

    @property
    def heading(self) -> str:
        """The title with a capital letter."""
        return f"{self.title[0].upper()}{self.title[1:]}"

    def of(self, measured: Measurement) -> float:
        """The number as it is shown, for instance in percent."""
        return self.factor * float(getattr(measured, self.field))


ACCURACY = Metric("accuracy", "accuracy (%)", "accuracy", 100.0, 1, "higher")
BIAS = Metric("bias", "prediction bias (L1)", "L1")
CALIBRATION = Metric("ece", "calibration error (ECE)", "ECE")
LIKELIHOOD = Metric("nll", "negative log-likelihood (NLL)", "NLL")
RECALL_SPREAD = Metric("recall_sd", "s.d. of class recalls", "recall s.d.")
SECONDS = Metric("seconds", "seconds", decimals=2, of_stream=True)
AUROC = Metric("auroc", "AUROC of energies", "AUROC", better="higher")
FALSE_POSITIVES = Metric("fpr95", "unknown images accepted with 95 % of known ones (%)", "FPR95", 100.0, 1)
BETA = Metric("mean_beta", "beta", decimals=2, better="")

NOT_RUN, DIVERGED, NO_SHARED_SEED = "not run", "diverged", "no shared seed"


@dataclass(frozen=True)
class Cell:
    """A mean over seeds, together with the number printed in the paper."""

    value: float | None = None
    sd: float | None = None
    """Standard deviation over seeds; None for a single one."""
    paper: Cell | None = None
    why_empty: str = NOT_RUN
    """Shown where there is no value."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """The value of each seed, of which `value` is the mean."""
    margin: float | None = None
    """For a difference, half of its 95 % confidence interval over paired seeds; None for a single seed."""

    def __sub__(self, other: Cell) -> Cell:
        """The difference, paired by seed over the seeds that both have, with the paper's if it printed both.

        One seed gives no margin: the images of a stream are not independent samples if a method adapts to them.
        """
        paper = None
        if self.paper is not None and other.paper is not None:
            paper = Cell(round((self.paper.value or 0.0) - (other.paper.value or 0.0), 1))
        if self.value is None or other.value is None:
            return Cell(paper=paper, why_empty=self.why_empty if self.value is None else other.why_empty)
        paired = {seed: value - other.by_seed[seed] for seed, value in self.by_seed.items() if seed in other.by_seed}
        if not paired:
            return Cell(paper=paper, why_empty=NO_SHARED_SEED)
        return replace(over_seeds(paired), paper=paper, margin=half_interval(list(paired.values())))


def over_seeds(by_seed: Mapping[int, float]) -> Cell:
    """Mean and s.d. of one value per seed."""
    values = list(by_seed.values())
    return Cell(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, by_seed=by_seed)


def combined(cells: Sequence[Cell], combine: Callable[[Iterable[float]], float]) -> Cell:
    """Combine the values of cells, then mean and s.d. over the seeds that all of them share."""
    if empty := next((cell for cell in cells if cell.value is None), None):
        return empty
    seeds = [seed for seed in cells[0].by_seed if all(seed in cell.by_seed for cell in cells)]
    if not seeds:
        return Cell(why_empty=NO_SHARED_SEED)
    return over_seeds({seed: combine(cell.by_seed[seed] for cell in cells) for seed in seeds})


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 % quantiles, 1 to 9 degrees


def half_interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the mean, by Student's t; None for fewer than two values."""
    degrees = len(values) - 1
    if degrees < 1:
        return None
    quantile = _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else 1.96 + 2.37 / degrees + 2.82 / degrees**2
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def tenth_of(items: Sized) -> int:
    """A tenth of the number of items, rounded up."""
    return -(-len(items) // 10)


class Results(Generic[S]):
    """Cells computed from records, for series of runs, such as a method or the best of several.

    Args:
        records: by key.
        diverged: keys of runs that diverged.
    """

    def __init__(self, records: Mapping[str, RunRecord], diverged: Collection[str] = ()):
        self.by_key = records
        self._diverged = diverged

    def runs(self, series: S, corruption: str) -> Sequence[RunConfig]:
        """The runs of a series on a corruption, one for each seed."""
        raise NotImplementedError

    def records(self, series: S, corruption: str) -> list[RunRecord]:
        """The records of a series on a corruption, one per seed; empty unless every seed was run."""
        found = [self.by_key.get(config.key) for config in self.runs(series, corruption)]
        complete = [record for record in found if record is not None]
        return complete if len(complete) == len(found) else []

    def measured(self, series: S, corruption: str, measure: Callable[[RunRecord, Measurement], float]) -> Cell:
        """Mean and s.d. over seeds of a number computed from a record and its measurement on one corruption."""
        records = self.records(series, corruption)
        if not records:
            return self.empty(series, [corruption])
        return over_seeds({each.config.stream.seed: measure(each, each.by_corruption[corruption]) for each in records})

    def cell(self, series: S, metric: Metric, corruption: str) -> Cell:
        """Mean and s.d. over seeds on one corruption."""
        return self.measured(
            series, corruption, lambda record, measured: metric.of(record if metric.of_stream else measured)
        )

    def mean(self, series: S, metric: Metric, corruptions: Sequence[str]) -> Cell:
        """Mean over corruptions, then mean and s.d. over the seeds that all corruptions share."""
        return self._over_corruptions(series, metric, corruptions, statistics.fmean)

    def tail(self, series: S, metric: Metric, corruptions: Sequence[str]) -> Cell:
        """Mean over the worst tenth of the corruptions, chosen for each seed, then mean and s.d. over seeds."""

        def mean_of_worst(values: Iterable[float]) -> float:
            worst_first = sorted(values, reverse=metric.better == "lower")
            return statistics.fmean(worst_first[: tenth_of(corruptions)])

        return self._over_corruptions(series, metric, corruptions, mean_of_worst)

    def _over_corruptions(
        self, series: S, metric: Metric, corruptions: Sequence[str], combine: Callable[[Iterable[float]], float]
    ) -> Cell:
        cells = [self.cell(series, metric, corruption) for corruption in corruptions]
        if not cells or any(cell.value is None for cell in cells):
            return self.empty(series, corruptions)
        return combined(cells, combine)

    def empty(self, series: S, corruptions: Sequence[str]) -> Cell:
        """An empty cell with the reason."""
        keys = {config.key for corruption in corruptions for config in self.runs(series, corruption)}
        return Cell(why_empty=NOT_RUN if keys.isdisjoint(self._diverged) else DIVERGED)
