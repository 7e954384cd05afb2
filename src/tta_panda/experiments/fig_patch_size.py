"""Patches between texture and image: what their size gives and costs as labels come in runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tta_panda.experiments.layout import Sweep, SweepExperiment
from tta_panda.experiments.setup import Series, Setup
from tta_panda.experiments.streams import STREAMS

_SIZES = (4, 8, 16, 32)
_BETA = 0.4
_QUICK_IMAGES = 1000  # fewer would leave several classes in each batch of a sorted stream


class PatchSizeFigure(SweepExperiment):
    title = "Patch size"
    about = "CLIP with Panda over the size of patches, against plain CLIP and the mean of the batch (+center)."
    log_x = True
    panels: ClassVar = dict.fromkeys(("shuffled", "correlated:0.1", "sorted"), "side of a patch (px)")

    def sweeps(self, setup: Setup) -> list[Sweep]:
        sweeps = []
        for panel, name in enumerate(self.panels):
            stream = {**STREAMS[name], "quick_images": _QUICK_IMAGES}
            for hue, (label, beta) in enumerate({f"beta {_BETA}": _BETA, "beta auto": "auto"}.items()):
                points: dict[float, Series] = {
                    size: setup.panda("clip", patch_size=size, beta=beta, **stream) for size in _SIZES
                }
                sweeps.append(Sweep(f"clip+panda, {label}", points, hue, panel=panel))
            for hue, level in enumerate((setup.plain("clip", **stream), setup.debiased("clip", "center", **stream)), 2):
                sweeps.append(Sweep(level.label, dict.fromkeys(_SIZES, level), hue, "level", panel))
        return sweeps

    def notes(self, setup: Setup, corruptions: Sequence[str]) -> list[str]:
        note = "Pixels are those of the model's input, 32 a side in the embedded model: there, 32 is the whole image."
        return [*super().notes(setup, corruptions), note]
