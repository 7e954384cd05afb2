"""The paper's theorem: closed form and simulation. Needs no runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.setup import Series, Setup
from tta_panda.panda.theorem import accuracy, simulate_accuracy
from tta_panda.reporting.cells import Cell
from tta_panda.reporting.figures import Line, LineFigure, Panel
from tta_panda.reporting.tables import Column, Row, Table

_CORRELATIONS = (0.3, 0.6, 0.9)
_BETAS = tuple(step / 10 for step in range(13))
_NOISES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_SAMPLES = 100_000


class TheoremFigure(Experiment):
    title = "The theorem"
    about = "Accuracy of the paper's one-dimensional example: lines are the closed form, points a simulation."
    in_paper = "Theorem 4.1"

    def series(self, setup: Setup) -> list[Series]:
        return []

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return ()

    def result(self, results: SetupResults) -> Result:
        rng = np.random.default_rng(0)
        over_beta = _panel(_BETAS, "beta", "noise s = 1", lambda r, beta: (1.0, r, beta), rng)
        over_noise = _panel(_NOISES, "noise s", "beta = r, the best", lambda r, noise: (noise, r, r), rng)
        caption = f"{self.about} r is the correlation of negative and corruption; {_SAMPLES:,} draws a point."
        tables = [_table(panel, name) for panel, name in ((over_beta, ""), (over_noise, "noise"))]
        return Result(tables, [LineFigure(caption, [over_beta, over_noise])])


Arguments = Callable[[float, float], tuple[float, float, float]]
"""(r, x) -> (noise, correlation, beta)."""


def _panel(xs: Sequence[float], x: str, title: str, arguments: Arguments, rng: np.random.Generator) -> Panel:
    lines = []
    for hue, r in enumerate(_CORRELATIONS):
        exact = [100 * accuracy(*arguments(r, value)) for value in xs]
        drawn = [100 * simulate_accuracy(*arguments(r, value), samples=_SAMPLES, rng=rng) for value in xs]
        lines.append(Line(f"r = {r:g}", xs, exact, hue=hue))
        lines.append(Line(f"r = {r:g}, simulated", xs, drawn, hue=hue, kind="points"))
    return Panel(x, "accuracy (%)", lines, title)


def _table(panel: Panel, name: str) -> Table:
    columns = [Column(line.label, 2) for line in panel.lines]
    rows = [Row(f"{x:g}", [Cell(line.ys[index]) for line in panel.lines]) for index, x in enumerate(panel.lines[0].xs)]
    return Table(f"Accuracy (%), {panel.title}", panel.x, columns, rows, name=name)
