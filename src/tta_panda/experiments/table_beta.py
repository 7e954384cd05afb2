"""Beta chosen without labels beside a fixed one, by kind of stream."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import quick_notes
from tta_panda.experiments.setup import Series, Setup
from tta_panda.experiments.streams import STREAMS, STREAMS_NOTE
from tta_panda.panda import Beta
from tta_panda.reporting.cells import ACCURACY, Cell
from tta_panda.reporting.tables import Column, Row, Table

_QUICK_IMAGES = 500  # fewer would leave many classes in each batch of a sorted stream
_BETAS: Sequence[Beta] = ("auto", 0.4)


class BetaTable(Experiment):
    title = "Beta by kind of stream"
    about = "What Panda changes in CLIP's accuracy with a beta chosen without labels, and with a fixed one."

    def series(self, setup: Setup) -> list[Series]:
        return [series for stream in STREAMS for series in _choices(setup, stream)]

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return setup.sensitivity_corruptions

    def result(self, results: SetupResults) -> Result:
        means, worst = [], []
        for stream in STREAMS:
            plain, *debiased = _choices(results.setup, stream)
            before = results.mean(plain, ACCURACY)
            means.append(Row(stream, [before, *(results.mean(each, ACCURACY) - before for each in debiased)]))
            worst.append(Row(stream, [_worst_change(results, plain, each) for each in debiased]))
        changes = [Column.delta(ACCURACY, f"Δ {beta}") for beta in _BETAS]
        columns, where = [Column.of(ACCURACY, "plain"), *changes], f"{len(results.corruptions)} corruptions"
        tables = [
            Table(f"Accuracy (%), mean of {where}", "stream", columns, means),
            Table(f"Change in accuracy on the worst of {where}", "stream", changes, worst, name="worst"),
        ]
        return Result(tables, notes=[STREAMS_NOTE, *quick_notes(results.corruptions)])


def _choices(setup: Setup, stream: str) -> list[Series]:
    """Plain, then with each beta."""
    changes = {**STREAMS[stream], "quick_images": _QUICK_IMAGES}
    return [setup.plain("clip", **changes), *(setup.panda("clip", beta=beta, **changes) for beta in _BETAS)]


def _worst_change(results: SetupResults, plain: Series, debiased: Series) -> Cell:
    """On the corruption where accuracy falls most, or gains least."""
    cells = [
        results.cell(debiased, ACCURACY, corruption) - results.cell(plain, ACCURACY, corruption)
        for corruption in results.corruptions
    ]
    return min(cells, key=lambda cell: -100.0 if cell.value is None else cell.value)  # an empty one says why
