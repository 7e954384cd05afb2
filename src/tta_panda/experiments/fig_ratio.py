"""How many negatives are needed: accuracy over the ratio M:B."""

from __future__ import annotations

from tta_panda.experiments.layout import Sweep, SweepExperiment
from tta_panda.experiments.setup import Setup

_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class RatioFigure(SweepExperiment):
    title = "Negatives per image"
    about = "Accuracy with M negatives for a batch of B images, from 1:100 to 1:1."
    in_paper = "Figure 5, left"
    x = "negatives per image, M:B"
    log_x = True

    def sweeps(self, setup: Setup) -> list[Sweep]:
        sweeps = []
        for hue, name in enumerate(("clip", "tent")):
            points = {ratio: setup.panda(name, ratio=ratio) for ratio in _RATIOS}
            sweeps.append(Sweep(f"{name}+panda", points, hue))
            sweeps.append(Sweep(name, dict.fromkeys(_RATIOS, setup.plain(name)), hue, "level"))
        return sweeps
