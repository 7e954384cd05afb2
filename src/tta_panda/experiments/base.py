"""What an experiment is, and how it looks up what its runs gave."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.data.dataset import CLEAN
from tta_panda.evaluation.record import RunConfig, RunRecord
from tta_panda.experiments.results import ACCURACY, DIVERGED, NOT_RUN, Cell, Metric, Result, over_seeds
from tta_panda.experiments.setup import Series, Setup, Variant


class Outcomes:
    """The records of a setup, by what was run."""

    def __init__(self, setup: Setup, records: Mapping[str, RunRecord], diverged: Collection[str] = ()):
        """`diverged` are the keys of runs that gave no numbers."""
        self.setup = setup
        self._records = records
        self._diverged = diverged

    def records(self, variant: Variant, corruption: str) -> list[RunRecord]:
        """One for each seed; none at all unless every seed was run."""
        found = [self._records.get(config.key) for config in self.setup.runs(variant, corruption)]
        complete = [record for record in found if record is not None]
        return complete if len(complete) == len(found) else []

    def chosen(self, series: Series, corruptions: Sequence[str] = CORRUPTIONS) -> Variant:
        """The variant behind a series: of several, the most accurate one over these corruptions and all seeds."""
        if len(series.candidates) == 1:
            return series.candidates[0]

        def accuracy(variant: Variant) -> float:
            value = self._mean(variant, ACCURACY, corruptions).value
            return -1.0 if value is None else value

        return max(series.candidates, key=accuracy)

    def chosen_beta(self, series: Series, corruptions: Sequence[str] = CORRUPTIONS) -> Cell:
        """Which beta of a grid was the best."""
        if self.mean(series, ACCURACY, corruptions).value is None:
            return Cell()
        return Cell(dict(self.chosen(series, corruptions).settings)["beta"])

    def cell(self, series: Series, metric: Metric, corruption: str, corruptions: Sequence[str] = CORRUPTIONS) -> Cell:
        """Mean and s.d. over seeds on one corruption; `corruptions` are those that a choice was made on."""
        return self._mean(self.chosen(series, corruptions), metric, [corruption])

    def mean(self, series: Series, metric: Metric, corruptions: Sequence[str] = CORRUPTIONS) -> Cell:
        """Over corruptions, then mean and s.d. over seeds."""
        return self._mean(self.chosen(series, corruptions), metric, corruptions)

    def empty(self, variant: Variant, corruptions: Sequence[str]) -> Cell:
        """A cell that says why it is."""
        runs = [config for corruption in corruptions for config in self.setup.runs(variant, corruption)]
        return Cell(why_empty=DIVERGED if any(config.key in self._diverged for config in runs) else NOT_RUN)

    def _mean(self, variant: Variant, metric: Metric, corruptions: Sequence[str]) -> Cell:
        by_corruption = [self.records(variant, corruption) for corruption in corruptions]
        if not all(by_corruption):
            return self.empty(variant, corruptions)
        by_seed = [
            metric.factor * statistics.fmean(getattr(record, metric.field) for record in records)
            for records in zip(*by_corruption, strict=True)
        ]
        return over_seeds(by_seed)


class Experiment(ABC):
    """A table or a figure: the runs it needs, and how they are laid out."""

    title: ClassVar[str]
    about: ClassVar[str]
    """What it shows, in a sentence."""
    in_paper: ClassVar[str]
    """Where it stands in the paper."""
    measured_alone: ClassVar[bool] = False
    """Whether its runs are timed, so that none of them may share passes with others or run beside them."""

    compares_benchmarks: ClassVar[bool] = False
    """Whether its first table is also shown for several benchmarks side by side, as in the paper."""

    @abstractmethod
    def series(self, setup: Setup) -> list[Series]:
        """Everything that is compared."""

    @abstractmethod
    def lay_out(self, outcomes: Outcomes) -> Result:
        """Tables and figures of what was run."""

    def corruptions(self, setup: Setup) -> Sequence[str]:
        """Where it is compared."""
        return CORRUPTIONS

    def needs(self, setup: Setup) -> str:
        """What has to be there, in a few words."""
        names = self.corruptions(setup)
        corrupted = [name for name in names if name != CLEAN]
        parts = ["clean images"] * (CLEAN in names)
        if corrupted:
            parts.append(corrupted[0].replace("_", " ") if len(corrupted) == 1 else f"{len(corrupted)} corruptions")
        return ", ".join(parts + ["an idle machine"] * self.measured_alone) or "nothing"

    def runs(self, setup: Setup) -> list[RunConfig]:
        """Every run that `lay_out` looks at, once."""
        runs = {
            config.key: config
            for corruption in self.corruptions(setup)
            for series in self.series(setup)
            for variant in series.candidates
            for config in setup.runs(variant, corruption)
        }
        return list(runs.values())
