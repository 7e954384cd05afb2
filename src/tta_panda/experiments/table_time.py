"""What Panda costs in time: every method alone, with and without."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.paper import METHODS
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.cells import SECONDS, Cell, over_seeds
from tta_panda.reporting.tables import Column, Row, Table

_CORRUPTION = "gaussian_noise"
_QUICK_IMAGES = 500

_PAPERS_SECONDS = {
    "clip": (17, 18, 5.9),
    "tent": (25, 27, 8.0),
    "eta": (21, 23, 9.5),
    "sar": (31, 34, 9.7),
    "deyo": (27, 28, 3.7),
    "tpt": (1341, 1359, 1.3),
    "dmn": (22, 23, 4.5),
    "zero": (531, 535, 0.8),
    "tps": (572, 577, 0.9),
    "bat": (28, 30, 7.2),
}
"""Seconds without and with Panda and the overhead in percent, as printed: ViT-B/32, CIFAR-10, a V100."""


class TimeTable(Experiment):
    title = "Time with and without Panda"
    about = "Seconds over one stream, alone on the machine, and what Panda adds."
    in_paper = "Table 3"
    timed = True

    def series(self, setup: Setup) -> list[Series]:
        return [series for name in METHODS for series in _pair(setup, name)]

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return (_CORRUPTION,)

    def result(self, results: SetupResults) -> Result:
        rows = []
        for name in METHODS:
            plain, panda = _pair(results.setup, name)
            seconds = [results.mean(series, SECONDS) for series in (plain, panda)]
            rows.append(Row(name, [*seconds, _overhead(results, plain, panda)]))
        columns = [Column("plain (s)", 2, "lower"), Column("+panda (s)", 2, "lower"), Column("overhead (%)", 1)]
        table = Table(f"Seconds over one stream, {_CORRUPTION.replace('_', ' ')}", "method", columns, rows)
        return Result([table, _papers()], notes=[_HOW])


_HOW = (
    "One run after the other, each after a batch to warm up; seconds are those in the method, from a batch of "
    "images to its predictions, without reading data. A machine's fluctuations from run to run are as large as the "
    "overhead, so this shows the pattern only: `benchmarks/panda.py` times both in turns, with margins."
)


def _pair(setup: Setup, name: str) -> tuple[Series, Series]:
    return setup.plain(name, quick_images=_QUICK_IMAGES), setup.panda(name, quick_images=_QUICK_IMAGES)


def _overhead(results: SetupResults, plain: Series, panda: Series) -> Cell:
    """Seed by seed, since the two runs of a seed follow each other: a machine that slows down slows both."""
    before, after = (results.cell(series, SECONDS, _CORRUPTION) for series in (plain, panda))
    if before.value is None or after.value is None:
        return before - after
    return over_seeds({seed: 100 * (after.by_seed[seed] / seconds - 1) for seed, seconds in before.by_seed.items()})


def _papers() -> Table:
    columns = [Column("plain (s)", 0), Column("+panda (s)", 0), Column("overhead (%)", 1)]
    rows = [Row(name, [Cell(value) for value in values]) for name, values in _PAPERS_SECONDS.items()]
    title = "Printed in the paper: ViT-B/32, CIFAR-10, 10,000 images, V100"
    note = "The paper's own numbers, on its machine: only the pattern can be compared."
    return Table(title, "method", columns, rows, note, of_paper=True, name="in-paper")
