"""All methods with and without Panda, those that came after it, too: how good they are, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.evaluation.record import Measurement, RunRecord
from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import encoded_per_image, quick_notes
from tta_panda.experiments.setup import Series, Setup
from tta_panda.experiments.table_main import accuracy_dots, accuracy_table, quality_table
from tta_panda.methods import METHODS
from tta_panda.reporting.cells import Cell
from tta_panda.reporting.tables import Column, Row, Table


class BeyondTable(Experiment):
    title = "All methods with and without Panda"
    about = "Accuracy, bias, calibration and cost of the paper's methods and of newer ones, and what Panda changes."

    def series(self, setup: Setup) -> list[Series]:
        return [series for name in METHODS for series in (setup.plain(name), *setup.with_panda(name))]

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return setup.sensitivity_corruptions

    def result(self, results: SetupResults) -> Result:
        accuracies = accuracy_table(results, list(METHODS))
        tables = [accuracies, quality_table(results, list(METHODS)), _costs(results)]
        return Result(tables, [accuracy_dots(accuracies)], quick_notes(results.corruptions))


def _costs(results: SetupResults) -> Table:
    rows = []
    for name in METHODS:
        pair = (results.setup.plain(name), results.setup.panda(name))
        images = [encoded_per_image(results, series, "images", "images_with_gradient") for series in pair]
        trained = encoded_per_image(results, pair[0], "images_with_gradient")
        rows.append(Row(name, [*images, trained, *(_seconds(results, series) for series in pair)]))
    columns = [Column(title, 1, "lower") for title in ("images", "images +panda", "images with gradient")]
    columns += [Column(title, 2, "lower") for title in ("seconds", "seconds +panda")]
    title = "Images encoded for each image of the stream, and seconds for a hundred"
    return Table(title, "method", columns, rows, _NOTE, name="costs")


_NOTE = (
    "Seconds are those of runs beside others, encoder passes that methods share counted in full for each: they tell "
    "cheap methods from costly ones. For times to compare: tta-panda reproduce table-time."
)


def _seconds(results: SetupResults, series: Series) -> Cell:
    return results.measured(series, results.corruptions[0], _per_hundred)


def _per_hundred(record: RunRecord, _: Measurement) -> float:
    return 100 * record.seconds / record.samples
