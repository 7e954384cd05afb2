"""What an experiment is, and how it looks up what its runs gave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import RunRecord
from tta_panda.experiments.paper import MEAN
from tta_panda.experiments.setup import Series, Setup, Variant
from tta_panda.reporting.cells import ACCURACY, Cell, Metric, Results
from tta_panda.reporting.figures import Figure
from tta_panda.reporting.tables import Table


@dataclass(frozen=True)
class Result:
    """Tables and figures that belong together."""

    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()


class SetupResults(Results[Series]):
    """The results of a setup's series. Where a series has several candidates, the most accurate one counts.

    Args:
        corruptions: what means are taken over and choices are made on.
    """

    def __init__(
        self,
        setup: Setup,
        records: Mapping[str, RunRecord],
        diverged: Collection[str] = (),
        corruptions: Sequence[str] = CORRUPTIONS,
    ):
        super().__init__(records, diverged)
        self.setup = setup
        self.corruptions = corruptions
        self._chosen: dict[Series, Variant] = {}

    def runs(self, series: Series, corruption: str) -> Sequence[RunConfig]:
        return self.setup.runs(self.chosen(series), corruption)

    def chosen(self, series: Series) -> Variant:
        def accuracy(variant: Variant) -> float:
            value = self.mean(Series("", (variant,)), ACCURACY).value
            return -1.0 if value is None else value

        if series not in self._chosen:
            several = len(series.candidates) > 1
            self._chosen[series] = max(series.candidates, key=accuracy) if several else series.candidates[0]
        return self._chosen[series]

    def chosen_beta(self, series: Series) -> Cell:
        """Which beta of a grid was the best."""
        if self.mean(series, ACCURACY).value is None:
            return Cell()
        return Cell(dict(self.chosen(series).settings)["beta"])

    def cell_or_mean(self, series: Series, metric: Metric, corruption: str) -> Cell:
        """Of one corruption, or over all of them for `MEAN`."""
        return self.mean(series, metric) if corruption == MEAN else self.cell(series, metric, corruption)

    def mean(self, series: Series, metric: Metric, corruptions: Sequence[str] | None = None) -> Cell:
        return super().mean(series, metric, self.corruptions if corruptions is None else corruptions)


class Experiment(ABC):
    """A table or a figure: the runs it needs, and what is shown of them."""

    title: ClassVar[str]
    about: ClassVar[str]
    """What it shows, in a sentence."""
    in_paper: ClassVar[str] = ""
    """Where it stands in the paper, if it does."""
    timed: ClassVar[bool] = False
    """Whether its runs are timed, so that none of them may share passes with others or run beside them."""
    compares_benchmarks: ClassVar[bool] = False
    """Whether its first table is also shown for several benchmarks side by side, as in the paper."""

    @abstractmethod
    def series(self, setup: Setup) -> list[Series]:
        """Everything that is compared."""

    @abstractmethod
    def result(self, results: SetupResults) -> Result:
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
        return ", ".join(parts + ["an idle machine"] * self.timed) or "nothing"

    def runs(self, setup: Setup) -> list[RunConfig]:
        """Every run that `result` looks at, once."""
        runs = {
            config.key: config
            for corruption in self.corruptions(setup)
            for series in self.series(setup)
            for variant in series.candidates
            for config in setup.runs(variant, corruption)
        }
        return list(runs.values())

    def evaluate(self, setup: Setup, records: Mapping[str, RunRecord], diverged: Collection[str] = ()) -> Result:
        """The result from whatever records there are; cells without them say so."""
        corrupted = [name for name in self.corruptions(setup) if name != CLEAN]
        return self.result(SetupResults(setup, records, diverged, corrupted))
