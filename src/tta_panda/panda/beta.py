"""`beta="auto"`: choose how much of the offset to subtract from predictions without labels.

The offset shifts all logits of a batch by one vector, `z = s (l - beta b)` with `l = v t'` and `b = n t'`, so the
effect of any beta can be computed from `l` and `b` without encoding again.

Shapes: G betas of the grid, B images, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.panda.debias import Evidence
from tta_panda.panda.statistics import (
    AbsentLevel,
    ClassDiversity,
    RunningMean,
    agreement,
    batch_mean,
    centred,
    correlation,
)
from tta_panda.state import Stateful
from tta_panda.transfers import to_device

HALF_LIFE = 200.0
"""Half-life of the statistics in images, to follow a stream whose corruption changes."""

GRID = torch.linspace(0, 1, 21, dtype=torch.float32, device="cpu")  # (G,)

MIN_GAIN = 1e-4
"""Smallest gain of mutual information, in nats, for which anything is subtracted."""

MIN_WEIGHT = 0.05
"""Below this weight, for more than 450 classes, mutual information is not worth its cost."""

_FLOATS_AT_ONCE = 1 << 17  # fits into the cache of a CPU


class AutoBeta(Stateful):
    """Beta from the slope between the bias of absent classes and the offset, blended with mutual information.

    Little or nothing is subtracted if negatives do not share the bias of the images, if the stream shows a single
    class, and, with few classes, if predictions do not gain information. Limitations: in a stream of a single class,
    accuracy hardly falls on average, but can fall by tens of points if negatives look like that class; with two
    classes, beta is half the choice of mutual information, which label shift can mislead; and in the first dozens of
    images of a stream, the choice is noisy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.beta: Tensor | None = self.add_state("beta", None)  # (), the last choice; None before the first
        # Of images and negatives, beyond chance, ()
        self.agreement = self.add_state("agreement", torch.zeros((), dtype=torch.float64, device="cpu"))
        self.level = self.add_state("level", AbsentLevel(1.0, HALF_LIFE))
        self.offset = self.add_state("offset", RunningMean(HALF_LIFE))
        self.diversity = self.add_state("diversity", ClassDiversity(HALF_LIFE))
        self.information = self.add_state("information", MutualInformation(HALF_LIFE))

    @torch.no_grad()
    def choose(self, evidence: Evidence) -> Tensor:
        """Choose beta () for the next batch. Predictions with the last beta determine which classes are absent."""
        assert evidence.offset_similarities is not None
        scale, plain, bias = evidence.scale, evidence.similarities, evidence.offset_similarities
        beta = 0.0 if self.beta is None else self.beta
        probabilities = (scale * (plain - beta * bias)).softmax(dim=1)
        level = self.level.update(plain, probabilities)
        offset = centred(self.offset.update(batch_mean(bias), len(plain)))
        agreed, beta = agreement(level, offset, evidence.directions), slope(level, offset)
        self.agreement = agreed
        weight = information_weight(len(level))
        if weight >= MIN_WEIGHT:
            informative = self.information.update((scale * plain).float(), (scale * bias).float())
            if len(level) == 2:  # level and offset always agree or always disagree
                agreed, beta = (correlation(level, offset) > 0).double(), informative
            else:
                beta = (1 - weight) * beta + weight * informative
        self.beta = self.diversity.update(plain) * (agreed * beta)
        return self.beta

    def explain(self) -> str:
        """Describe the last choice, and the reason if nothing was subtracted."""
        if self.beta is None:
            return "No batch has been seen."
        shared = correlation(self.level.value, centred(self.offset.value))
        if self.beta >= 0.005:
            return f"β = {self.beta:.2f} of their mean embedding was subtracted from the last batch (r = {shared:.2f})."
        if self.diversity.value == 0:
            return "Nothing was subtracted: the images look like a single class, which is inseparable from its bias."
        return f"Nothing was subtracted: images and negatives do not share a bias beyond chance (r = {shared:.2f})."


class MutualInformation(Stateful):
    """Mutual information of images and predictions along a stream, for every beta of a grid.

    It is large if predictions differ between images and are confident on each.
    """

    def __init__(self, half_life: float):
        super().__init__()
        self.probabilities = self.add_state("probabilities", RunningMean(half_life))  # (G, K)
        self.entropies = self.add_state("entropies", RunningMean(half_life))  # (G,)

    def update(self, plain: Tensor, bias: Tensor) -> Tensor:
        """Add a batch with logits `plain - beta * bias`, (B, K) and (1 or B, K); return the most informative beta ().

        It is 0 if the gain in information is negligible.
        """
        probabilities, entropies, grid = [], [], to_device(GRID, plain.device)
        by_class, bias_by_class = plain.T.contiguous(), bias.T.contiguous()  # a softmax over columns is much faster
        at_once = max(1, _FLOATS_AT_ONCE // plain.numel()) if plain.device.type == "cpu" else len(grid)
        for betas in grid.split(at_once):
            log_probabilities = (by_class - betas.view(-1, 1, 1) * bias_by_class).log_softmax(dim=1)  # (g, K, B)
            each = log_probabilities.exp()
            probabilities.append(each.mean(dim=2).double())
            entropies.append(-log_probabilities.mul_(each).sum(dim=1).mean(dim=1, dtype=torch.float64))
        mean = self.probabilities.update(torch.cat(probabilities), len(plain))  # (G, K)
        entropy = self.entropies.update(torch.cat(entropies), len(plain))
        information = -torch.xlogy(mean, mean).sum(dim=1) - entropy  # (G,), in nats
        most, best = information.max(dim=0)
        return grid.take(best).double().where(most - information[0] >= MIN_GAIN, 0.0)


def information_weight(classes: int) -> float:
    """Return the weight of mutual information relative to the slope.

    It decreases with the number of classes: with fewer images than classes, mutual information measures only confidence
    of predictions.
    """
    return 0.5 / (1 + classes / 50)


def slope(level: Tensor, offset: Tensor) -> Tensor:
    """Return the size () of the level relative to the offset, both centred (K,), from 0 to 1.

    This is the geometric mean of the slope of a regression, which noise in the offset makes too small for many classes,
    and the ratio of norms, which ignores the correlation of the two.
    """
    size = offset.norm()
    correlated = correlation(level, offset).clamp_min(0)
    return torch.where(size > 0, (correlated.sqrt() * level.norm() / size).clamp_max(1), 0.0)
