"""Layouts that several experiments share."""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.evaluation.record import RunRecord
from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.paper import BACKBONES, MEAN, PaperVariant, printed_accuracy
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.cells import ACCURACY, Cell, Metric, over_seeds
from tta_panda.reporting.figures import Line, LineFigure, LineKind, Panel
from tta_panda.reporting.tables import Column, Row, Table

SHORT_NAMES = {"gaussian_noise": "gauss", "impulse_noise": "impul", "defocus_blur": "defoc", "motion_blur": "motn"}
SHORT_NAMES |= {"brightness": "brit", "contrast": "contr", "elastic_transform": "elast", "pixelate": "pixel"}
PAPERS_OWN = "The paper's own numbers, of its own models, data and settings: only the pattern can be compared."
ZERO_NOTE = (
    "Zero's probabilities are the softmax of its votes, which is flat however sure it is: where they count, as in its "
    "bias, it cannot be compared with the others."
)


def short_name(corruption: str) -> str:
    return SHORT_NAMES.get(corruption) or corruption.partition("_")[0]


def accuracy(results: SetupResults, series: Series, method: str, variant: PaperVariant, corruption: str = MEAN) -> Cell:
    """Our accuracy, beside what the paper printed for this very setting, if it did."""
    cell = results.cell_or_mean(series, ACCURACY, corruption)
    if variant != "plain" and not results.setup.has_papers_beta(series):
        return cell
    return replace(cell, paper=printed_accuracy(results.setup.benchmark, method, variant, corruption))


def papers_cell(benchmark: str, method: str, variant: PaperVariant, corruption: str = MEAN) -> Cell:
    """A cell of a table that is the paper's altogether."""
    printed = printed_accuracy(benchmark, method, variant, corruption)
    return Cell() if printed is None else Cell(printed.value, printed.sd)


def papers_benchmarks(title: str, rows: Mapping[str, tuple[str, PaperVariant]]) -> Table:
    """Mean accuracies as the paper prints them for its three benchmarks."""
    return Table(
        f"{title}: printed in the paper, accuracy (%)",
        "method",
        [Column.of(ACCURACY, backbone) for backbone in BACKBONES.values()],
        [Row(name, [papers_cell(benchmark, *key) for benchmark in BACKBONES]) for name, key in rows.items()],
        note=PAPERS_OWN,
        of_paper=True,
        name="in-paper",
    )


def by_corruption(title: str, metric: Metric, rows: Mapping[str, Callable[[str], Cell]], name: str = "") -> Table:
    """All corruptions and their mean across; rows are given by what finds the cell of a corruption."""
    columns = [Column.of(metric, short_name(corruption)) for corruption in (*CORRUPTIONS, MEAN)]
    filled = [Row(label, [find(corruption) for corruption in (*CORRUPTIONS, MEAN)]) for label, find in rows.items()]
    return Table(title, "method", columns, filled, name=name)


@dataclass(frozen=True)
class Sweep:
    """A series for each value of something: a line of a figure and a column of its table."""

    label: str
    points: Mapping[float, Series]
    hue: int = 0
    kind: LineKind = "line"
    panel: int = 0


class SweepExperiment(Experiment):
    """Mean accuracy over a range of values."""

    x: ClassVar[str]
    log_x: ClassVar[bool] = False
    panels: ClassVar[Mapping[str, str]] = {}
    """Titles of several panels, with what stands on their x axes."""

    @abstractmethod
    def sweeps(self, setup: Setup) -> list[Sweep]: ...

    def series(self, setup: Setup) -> list[Series]:
        return list(dict.fromkeys(series for sweep in self.sweeps(setup) for series in sweep.points.values()))

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return setup.sensitivity_corruptions

    def result(self, results: SetupResults) -> Result:
        corruptions = results.corruptions
        sweeps = self.sweeps(results.setup)
        cells = [{x: results.mean(series, ACCURACY) for x, series in sweep.points.items()} for sweep in sweeps]
        panels, tables = [], []
        for index, (title, x_axis) in enumerate((self.panels or {"": self.x}).items()):
            shown = [(sweep, of) for sweep, of in zip(sweeps, cells, strict=True) if sweep.panel == index]
            lines = [Line.of(sweep.label, of, sweep.hue, sweep.kind) for sweep, of in shown]
            panels.append(Panel(x_axis, "accuracy (%)", lines, title, self.log_x))
            xs = sorted({x for _, of in shown for x in of})
            rows = [Row(f"{x:g}", [of.get(x, Cell()) for _, of in shown]) for x in xs]
            columns = [Column.of(ACCURACY, sweep.label) for sweep, _ in shown]
            heading = f"{title or self.title}: accuracy (%), mean of {len(corruptions)} corruptions"
            tables.append(Table(heading, x_axis, columns, rows, name=str(index + 1) if index else ""))
        caption = f"{self.about} Mean of {len(corruptions)} corruptions; bars are one s.d. over seeds."
        return Result(tables, [LineFigure(caption, panels)], self.notes(results.setup, corruptions))

    def notes(self, setup: Setup, corruptions: Sequence[str]) -> list[str]:
        return sweep_notes(setup, corruptions)


def batch_sizes(setup: Setup, sizes: Sequence[int]) -> list[int]:
    """Those that differ: two sizes that each hold the whole stream would be the same run."""
    limit = dict(setup.variant("clip").stream).get("limit", setup.stream.limit)
    return [size for size, smaller in zip(sizes, (0, *sizes), strict=False) if limit is None or smaller < limit]


def by_tenth(records: Sequence[RunRecord], metric: Metric) -> list[Cell]:
    """A cell over seeds for each tenth of a stream."""
    seeds = [record.config.stream.seed for record in records]
    return [
        over_seeds({seed: metric.of(tenth) for seed, tenth in zip(seeds, tenths, strict=True)})
        for tenths in zip(*(record.tenths for record in records), strict=True)
    ]


def encoded_per_image(results: SetupResults, series: Series, *kinds: str) -> Cell:
    """What went through the encoders for each image of the streams; `kinds` are fields of `PassesPerBatch`."""
    records = [results.records(series, corruption) for corruption in results.corruptions]
    if not all(records):
        return results.empty(series, results.corruptions)
    return Cell(statistics.fmean(_encoded(record, kinds) for found in records for record in found))


def _encoded(record: RunRecord, kinds: Sequence[str]) -> float:
    batches = math.ceil(record.samples / record.config.stream.batch_size)
    return sum(float(getattr(record.passes, kind)) for kind in kinds) * batches / record.samples


def sweep_notes(setup: Setup, corruptions: Sequence[str]) -> list[str]:
    notes = quick_notes(corruptions)
    return [*notes, "The search for beta is part of the tables; here, beta is auto."] if setup.beta == "grid" else notes


def quick_notes(corruptions: Sequence[str]) -> list[str]:
    return [] if len(corruptions) == len(CORRUPTIONS) else [f"Quick look: only on {', '.join(corruptions)}."]
