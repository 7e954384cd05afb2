"""Beta by regression: how much of the offset explains the level of absent classes, as far as the two agree."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.panda.absent import AbsentLevel, RunningMean, beyond_chance, centred, correlation
from tta_panda.panda.beta.base import BetaRule
from tta_panda.panda.beta.information import GRID, MutualInformation

HALF_LIFE = 200.0
"""In images: a rule that forgets follows a stream whose corruption changes."""

CAUTION = 4.0
"""How many times over chance must be beaten for levels and offset to agree."""

WORTHWHILE = 1e-4
"""In nats: the least gain of mutual information for which anything is subtracted."""


class ShrinkageBeta(BetaRule):
    """The regression of absent classes' levels on the offset, shrunk by what chance explains of their agreement.

    The level of an absent class hardly depends on how often the class occurs, so unlike the mean similarity it is no
    mixture of bias and labels. Mutual information has a say, too, less the more classes there are: with fewer images
    than classes it sees lost confidence only. With two classes nothing is subtracted.
    """

    def reset(self) -> None:
        self.beta: float | None = None
        self.information = MutualInformation(HALF_LIFE)
        self.level = AbsentLevel(1.0, HALF_LIFE)
        self.offset = RunningMean(HALF_LIFE)

    @torch.no_grad()
    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float, directions: float) -> float:
        plain, bias = similarities.float().cpu(), offset_similarities.float().cpu()
        informative = most_informative(self.information.update(scale * plain, scale * bias))
        level = self.level.update(plain, (scale * plain).softmax(dim=1))
        offset = centred(self.offset.update(bias, len(plain)))
        slope = min(1.0, max(0.0, float(level @ offset / (offset @ offset).clamp_min(1e-12))))
        weight, classes = information_weight(len(level)), len(level)
        agreed = beyond_chance(correlation(level, offset), CAUTION / (classes - 2)) if classes > 2 else 0.0
        self.beta = agreed * ((1 - weight) * slope + weight * informative)
        return self.beta


def most_informative(information: Tensor) -> float:
    """Of the grid, the beta of largest mutual information (G,), where that is worthwhile."""
    best = int(information.argmax())
    return float(GRID[best]) if information[best] - information[0] >= WORTHWHILE else 0.0


def information_weight(classes: int) -> float:
    """How much mutual information counts beside regression."""
    return 0.5 / (1 + classes / 50)
