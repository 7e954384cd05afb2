"""How strongly to subtract: accuracy over beta, and the two ways to choose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tta_panda.experiments.base import Outcomes
from tta_panda.experiments.layout import Sweep, SweepExperiment, quick_notes
from tta_panda.experiments.results import ACCURACY, Column, Result, Row, Table
from tta_panda.experiments.setup import BEST_OF_GRID, BETA_GRID, Setup

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

    def lay_out(self, outcomes: Outcomes) -> Result:
        result = super().lay_out(outcomes)
        return replace(result, tables=[*result.tables, self._choices(outcomes)])

    def notes(self, setup: Setup, corruptions: Sequence[str]) -> list[str]:
        return quick_notes(corruptions)  # the search for beta is here

    def _choices(self, outcomes: Outcomes) -> Table:
        setup, corruptions = outcomes.setup, self.corruptions(outcomes.setup)
        rows = []
        for name in _METHODS:
            grid, auto = setup.best_of_grid(name), setup.panda(name, beta="auto")
            best = outcomes.chosen_beta(grid, corruptions)
            plain, *both = (outcomes.mean(s, ACCURACY, corruptions) for s in (setup.plain(name), auto, grid))
            rows.append(Row(name, [plain, *(cell for each in both for cell in (each, each - plain)), best]))
        columns = [Column("plain", better="higher")]
        for title in ("auto (no labels)", BEST_OF_GRID):
            columns += [Column(title, better="higher"), Column("Δ", 1, "higher", True)]
        columns.append(Column("its beta"))
        note = (
            "The best of the grid was chosen with the labels that it is then measured on, as in the paper: an upper "
            "bound for a fixed beta, not what one could have had in use."
        )
        title = f"Two ways to choose beta: accuracy (%), mean of {len(corruptions)} corruptions"
        return Table(title, "method", columns, rows, note, name="choices")
