"""How large batches have to be: Tent with and without Panda."""

from __future__ import annotations

from tta_panda.experiments.layout import Sweep, SweepExperiment, batch_sizes
from tta_panda.experiments.setup import Setup

_SIZES, _QUICK_SIZES = (5, 10, 20, 50, 100, 200), (10, 20, 50, 100)


class BatchSizeFigure(SweepExperiment):
    title = "Batch size"
    about = "Tent without and with Panda on batches of several sizes, the learning rate unchanged."
    in_paper = "Figure 5, right"
    x = "batch size"
    log_x = True

    def sweeps(self, setup: Setup) -> list[Sweep]:
        sizes = batch_sizes(setup, _QUICK_SIZES if setup.quick else _SIZES)
        return [
            Sweep("tent", {size: setup.plain("tent", batch_size=size) for size in sizes}, 0),
            Sweep("tent+panda", {size: setup.panda("tent", batch_size=size) for size in sizes}, 1),
        ]
