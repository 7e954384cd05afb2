"""Down to single images: CLIP debiased, on batches of all sizes."""

from __future__ import annotations

from tta_panda.experiments.layout import Sweep, SweepExperiment, batch_sizes
from tta_panda.experiments.setup import Series, Setup

_SIZES = (1, 2, 5, 10, 20, 50, 100)
_WAYS = ("panda", "level", "panda+level")


class BatchOneFigure(SweepExperiment):
    title = "Down to single images"
    about = "CLIP debiased in three ways on batches of 1 to 100 images; plain CLIP does not depend on their size."
    x = "batch size"
    log_x = True

    def sweeps(self, setup: Setup) -> list[Sweep]:
        sizes = batch_sizes(setup, _SIZES)
        sweeps = [Sweep("clip", dict.fromkeys(sizes, setup.plain("clip")), 0, "level")]
        for hue, way in enumerate(_WAYS, 1):
            points: dict[float, Series] = {size: setup.debiased("clip", way, batch_size=size) for size in sizes}
            sweeps.append(Sweep(f"clip+{way}", points, hue))
        return sweeps
