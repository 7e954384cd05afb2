"""What of Panda matters: negatives from the whole batch, and their mean."""

from __future__ import annotations

from collections.abc import Sequence

from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.layout import sweep_notes
from tta_panda.experiments.paper import METHODS
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.cells import ACCURACY
from tta_panda.reporting.figures import DotFigure, Dots
from tta_panda.reporting.tables import Column, Row, Table

_QUICK_METHODS = ("clip", "tent", "eta", "dmn", "zero", "tps")


class AblationFigure(Experiment):
    title = "Ablation"
    about = "Panda off, with negatives made within each image, without averaging them, and in full."
    in_paper = "Figure 6"

    def series(self, setup: Setup) -> list[Series]:
        return [series for name in _methods(setup) for series in _kinds(setup, name).values()]

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return setup.sensitivity_corruptions

    def result(self, results: SetupResults) -> Result:
        setup, corruptions = results.setup, results.corruptions
        names = _methods(setup)
        cells = {name: {kind: results.mean(s, ACCURACY) for kind, s in _kinds(setup, name).items()} for name in names}
        kinds = list(cells[names[0]])
        dots = [Dots.of(kind, (cells[name][kind] for name in names)) for kind in kinds]
        columns = [Column.of(ACCURACY, kind) for kind in kinds]
        where = f"mean of {len(corruptions)} corruptions"
        table = Table(f"Accuracy (%), {where}", "method", columns, [Row(n, list(cells[n].values())) for n in names])
        caption = f"{self.about} {where.capitalize()}; bars are one s.d. over seeds."
        figure = DotFigure(caption, ACCURACY.title, names, dots)
        return Result([table], [figure], sweep_notes(setup, corruptions))


def _methods(setup: Setup) -> Sequence[str]:
    return _QUICK_METHODS if setup.quick else list(METHODS)


def _kinds(setup: Setup, name: str) -> dict[str, Series]:
    return {
        "off": setup.plain(name),
        "within image": setup.panda(name, sampler="within_image"),
        "no average": setup.panda(name, average=False),
        "full": setup.panda(name),
    }
