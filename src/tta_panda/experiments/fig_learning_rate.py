"""How much the learning rate matters: Tent and SAR, with and without Panda."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tta_panda.experiments.layout import Sweep, SweepExperiment
from tta_panda.experiments.setup import Setup

_FACTORS, _QUICK_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0), (0.1, 1.0, 10.0)

_VARIED = {"tent": "lr", "sar": "rho"}
"""What the paper lists as SAR's learning rate is the radius rho in its authors' code, and here."""


class LearningRateFigure(SweepExperiment):
    title = "Learning rate"
    about = "Accuracy over two decades around the value in use: Tent's learning rate, and SAR's rho."
    in_paper = "Appendix, learning rates"
    log_x = True
    panels: ClassVar = {"Tent": "learning rate", "SAR": "rho"}

    def sweeps(self, setup: Setup) -> list[Sweep]:
        sweeps = []
        for panel, (name, option) in enumerate(_VARIED.items()):
            usual = setup.method(setup.variant(name)).options[option]
            values = [float(f"{usual * factor:.3g}") for factor in (_QUICK_FACTORS if setup.quick else _FACTORS)]
            settings: list[dict[str, Any]] = [{option: value} for value in values]
            plain = {value: setup.plain(name, **each) for value, each in zip(values, settings, strict=True)}
            panda = {value: setup.panda(name, **each) for value, each in zip(values, settings, strict=True)}
            sweeps += [Sweep(name, plain, 0, panel=panel), Sweep(f"{name}+panda", panda, 1, panel=panel)]
        return sweeps

    def notes(self, setup: Setup, corruptions: Sequence[str]) -> list[str]:
        note = "SAR's own learning rate is left alone: what the paper lists as such is the radius rho of its steps."
        return [*super().notes(setup, corruptions), note]
