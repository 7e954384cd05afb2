"""Prediction bias of clean images, of corrupted ones, with positive augmentation, and with Panda."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.experiments.base import Experiment, Result, SetupResults
from tta_panda.experiments.setup import Series, Setup
from tta_panda.reporting.cells import BIAS, Cell
from tta_panda.reporting.comparison import corruption_rows
from tta_panda.reporting.figures import corruption_dots
from tta_panda.reporting.tables import Column, Row, Table


class BiasFigure(Experiment):
    title = "Prediction bias"
    about = "L1 distance between the mean prediction and the label frequencies, corruption by corruption."
    in_paper = "Figure 2 and its appendix"

    def series(self, setup: Setup) -> list[Series]:
        # What TPT, TPS and Zero have in common and no more: the mean prediction over the confident views.
        positive = setup.plain("zero", "positive augmentation", temperature=1.0)
        return [setup.plain("clip"), positive, setup.panda("clip")]

    def corruptions(self, setup: Setup) -> Sequence[str]:
        return (CLEAN, *CORRUPTIONS)

    def result(self, results: SetupResults) -> Result:
        clip, positive, panda = shown = self.series(results.setup)
        cells = {s: {name: results.cell(s, BIAS, name) for name in (CLEAN, *CORRUPTIONS)} for s in shown}
        columns = [Column.of(BIAS, series.label) for series in shown]
        columns += [Column.delta(BIAS, "Δ positive"), Column.delta(BIAS, "Δ panda")]
        rows = []
        for group, name in [("", CLEAN), *corruption_rows(CORRUPTIONS)]:
            of = {series: cells[series][name] for series in shown}
            rows.append(Row(name, [*of.values(), of[positive] - of[clip], of[panda] - of[clip]], group))
        means = {series: results.mean(series, BIAS) for series in shown}
        deltas = [means[positive] - means[clip], means[panda] - means[clip]]
        rows.append(Row("mean of 15", [*means.values(), *deltas], is_mean=True))
        clean = cells[clip][CLEAN].value
        level = None if clean is None else ("clip on clean images", clean)
        notes = _notes(cells[clip], {series.label: cells[series] for series in (positive, panda)})
        figure = corruption_dots(results, {each.label: each for each in shown}, BIAS, CORRUPTIONS, self.about, level)
        return Result([Table("Prediction bias (L1)", "corruption", columns, rows)], [figure], notes)


def _notes(of_clip: Mapping[str, Cell], others: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    notes = []
    for label, cells in others.items():
        changes = [(cells[name] - of_clip[name]).value for name in CORRUPTIONS]
        known = [change for change in changes if change is not None]
        lower, higher = sum(change < 0 for change in known), sum(change > 0 for change in known)
        notes.append(f"{label} against clip: bias lower in {lower}, higher in {higher} of {len(known)}.")
    notes.append(
        "In the paper (ViT-B/32, CIFAR-10-C): positive augmentation lower in 4, higher in 11 of 15; Panda lower in 15."
    )
    return notes
