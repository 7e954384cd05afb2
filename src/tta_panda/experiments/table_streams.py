"""Methods debiased in every way, on streams as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import sweep_notes
from tta_panda.experiments.setup import Series, Setup
from tta_panda.experiments.streams import STREAMS, STREAMS_NOTE
from tta_panda.methods import DEBIASES
from tta_panda.reporting.cells import ACCURACY, Cell, tenth_of
from tta_panda.reporting.tables import Column, Row, Table

_METHODS, _QUICK_METHODS = ("clip", "tent", "dmn"), ("clip", "tent")
_QUICK_STREAMS = ("shuffled", "correlated:0.1", "sorted", "label_shift:0.1")


class StreamsTable(Experiment):
    title = "Ways to debias, by kind of stream"
    about = "Accuracy of plain methods, and what each way to debias changes, on streams of several kinds."

    def series(self, setup: Setup) -> list[Series]:
        return [
            series for name in _methods(setup) for stream in _streams(setup) for series in _ways(setup, name, stream)
        ]

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return setup.sensitivity_corruptions

    def result(self, results: SetupResults) -> Result:
        corruptions = results.corruptions
        means = _table(results, partial(results.mean, metric=ACCURACY), f"mean of {len(corruptions)} corruptions")
        tails = _table(
            results,
            partial(results.tail, metric=ACCURACY, corruptions=corruptions),
            f"mean of the worst tenth, {tenth_of(corruptions)} of {len(corruptions)} corruptions",
            name="tail",
        )
        return Result([means, tails], notes=[STREAMS_NOTE, *sweep_notes(results.setup, corruptions)])


def _methods(setup: Setup) -> Sequence[str]:
    return _QUICK_METHODS if setup.quick else _METHODS


def _streams(setup: Setup) -> Sequence[str]:
    return _QUICK_STREAMS if setup.quick else list(STREAMS)


def _ways(setup: Setup, method: str, stream: str) -> list[Series]:
    """The plain method, then debiased in every way."""
    changes = STREAMS[stream]
    return [setup.plain(method, **changes), *(setup.debiased(method, way, **changes) for way in DEBIASES)]


def _table(results: SetupResults, look_up: Callable[[Series], Cell], where: str, name: str = "") -> Table:
    rows = []
    for method in _methods(results.setup):
        for stream in _streams(results.setup):
            plain, *debiased = map(look_up, _ways(results.setup, method, stream))
            rows.append(Row(f"{method}, {stream}", [plain, *(cell - plain for cell in debiased)]))
    columns = [Column.of(ACCURACY, "plain"), *(Column.delta(ACCURACY, f"Δ +{way}") for way in DEBIASES)]
    return Table(f"Accuracy (%), {where}", "method and stream", columns, rows, name=name)
