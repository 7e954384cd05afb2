"""How strongly to subtract: accuracy over beta, and the two ways to choose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tta_panda.experiments.base import Result, SetupResults
from tta_panda.experiments.layout import Sweep, SweepExperiment, quick_notes
from tta_panda.experiments.setup import BEST_OF_GRID, BETA_GRID, Setup
from tta_panda.reporting.cells import ACCURACY
from tta_panda.reporting.tables import Column, Row, Table

_METHODS = ("clip", "tent")


class BetaFigure(SweepExperiment):
    title = "The offset ratio beta"
    about = "Accuracy over beta; at 0 the plain method. The dashed line is beta auto, which needs no labels."
    in_paper = "Figure 5, middle"
    x = "beta"

    def sweeps(self, setup: Setup) -> list[Sweep]:
        sweeps = []
        for hue, name in enumerate(_METHODS):
            points = {0.0: setup.plain(name)} | {beta: setup.panda(name, beta=beta) for beta in BETA_GRID}
            sweeps.append(Sweep(f"{name}+panda", points, hue))
            sweeps.append(
                Sweep(f"{name}+panda, auto", dict.fromkeys(points, setup.panda(name, beta="auto")), hue, "level")
            )
        return sweeps

    def result(self, results: SetupResults) -> Result:
        result = super().result(results)
        return replace(result, tables=[*result.tables, self._choices(results)])

    def notes(self, setup: Setup, corruptions: Sequence[str]) -> list[str]:
        return quick_notes(corruptions)  # the search for beta is here

    def _choices(self, results: SetupResults) -> Table:
        setup, corruptions = results.setup, results.corruptions
        rows = []
        for name in _METHODS:
            grid, auto = setup.best_of_grid(name), setup.panda(name, beta="auto")
            best = results.chosen_beta(grid)
            plain, *both = (results.mean(s, ACCURACY) for s in (setup.plain(name), auto, grid))
            rows.append(Row(name, [plain, *(cell for each in both for cell in (each, each - plain)), best]))
        columns = [Column.of(ACCURACY, "plain")]
        for title in ("auto (no labels)", BEST_OF_GRID):
            columns += [Column.of(ACCURACY, title), Column.delta(ACCURACY)]
        columns.append(Column("its beta"))
        note = (
            "The best of the grid was chosen with the labels that it is then measured on, as in the paper: an upper "
            "bound for a fixed beta, not what one could have had in use."
        )
        title = f"Two ways to choose beta: accuracy (%), mean of {len(corruptions)} corruptions"
        return Table(title, "method", columns, rows, note, name="choices")
