"""`beta="auto"`: how much of the offset to subtract, chosen from unlabelled predictions.

The offset moves all logits of a batch by one vector, `z = s (l - beta b)` with `l = v t'` and `b = n t'`, so the effect
of any beta follows from `l` and `b` without encoding anything again.

Shapes: G betas of the grid, B images, K classes.
"""

from __future__ import annotations

import math

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

HALF_LIFE = 200.0
"""In images: what was seen earlier is forgotten, to follow a stream whose corruption changes."""

GRID = torch.linspace(0, 1, 21, dtype=torch.float32, device="cpu")  # (G,)

MIN_GAIN = 1e-4
"""In nats: the smallest gain of mutual information for which anything is subtracted."""

MIN_WEIGHT = 0.05
"""Mutual information with a smaller weight is not worth its cost: with more than 450 classes."""

_FLOATS_AT_ONCE = 1 << 17  # what fits into the cache of a CPU


class AutoBeta(Stateful):
    """The slope of the bias of absent classes on the offset, blended with mutual information.

    Little or nothing is subtracted where negatives do not share the bias of the images, where the stream shows a single
    class, and, with few classes, where predictions do not gain from it. Limits: in a stream of one class alone,
    accuracy can still fall by tens of points where negatives look like that class, though on average it hardly does;
    with two classes it halves what mutual information chooses, which label shift can mislead; and in the first dozens
    of images of a stream its choice is noisy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.beta: float | None = self.add_state("beta", None)  # the last choice; None before the first
        self.level = self.add_state("level", AbsentLevel(1.0, HALF_LIFE))
        self.offset = self.add_state("offset", RunningMean(HALF_LIFE))
        self.diversity = self.add_state("diversity", ClassDiversity(HALF_LIFE))
        self.information = self.add_state("information", MutualInformation(HALF_LIFE))

    @torch.no_grad()
    def choose(self, evidence: Evidence) -> float:
        """Beta for the next batch. The predictions that the last beta gives say which classes are absent."""
        assert evidence.offset_similarities is not None
        scale, plain, bias = evidence.scale, evidence.similarities.cpu(), evidence.offset_similarities.cpu()
        probabilities = (scale * (plain - (self.beta or 0.0) * bias)).softmax(dim=1)
        level = self.level.update(plain, probabilities)
        offset = centred(self.offset.update(batch_mean(bias), len(plain)))
        agreed, beta = agreement(level, offset, evidence.directions), slope(level, offset)
        weight = information_weight(len(level))
        if weight >= MIN_WEIGHT:
            informative = self.information.update((scale * plain).float(), (scale * bias).float())
            if len(level) == 2:  # level and offset always agree or always disagree
                agreed, beta = float(correlation(level, offset) > 0), informative
            else:
                beta = (1 - weight) * beta + weight * informative
        self.beta = self.diversity.update(plain) * (agreed * beta)
        return self.beta

    def explain(self) -> str:
        """The last choice, and its reason where that is not to subtract anything."""
        if self.beta is None:
            return "No batch has been seen."
        shared = correlation(self.level.value, centred(self.offset.value))
        if self.beta >= 0.005:
            return f"β = {self.beta:.2f} of their mean embedding was subtracted from the last batch (r = {shared:.2f})."
        if self.diversity.value == 0:
            return "Nothing was subtracted: the images look like a single class, whose bias cannot be told from it."
        return f"Nothing was subtracted: images and negatives do not share a bias beyond chance (r = {shared:.2f})."


class MutualInformation(Stateful):
    """Mutual information of images and predictions along a stream, for every beta of a grid.

    It is large where predictions vary over the images and are confident on each.
    """

    def __init__(self, half_life: float):
        super().__init__()
        self.probabilities = self.add_state("probabilities", RunningMean(half_life))  # (G, K)
        self.entropies = self.add_state("entropies", RunningMean(half_life))  # (G,)

    def update(self, plain: Tensor, bias: Tensor) -> float:
        """The most informative beta after one more batch with logits `plain - beta * bias`, (B, K) and (1 or B, K).

        It is 0 where the gain in information is too small to count.
        """
        probabilities, entropies = [], []
        by_class, bias_by_class = plain.T.contiguous(), bias.T.contiguous()  # a softmax over columns is much faster
        for betas in GRID.split(max(1, _FLOATS_AT_ONCE // plain.numel())):
            log_probabilities = (by_class - betas.view(-1, 1, 1) * bias_by_class).log_softmax(dim=1)  # (g, K, B)
            each = log_probabilities.exp()
            probabilities.append(each.mean(dim=2).double())
            entropies.append(-log_probabilities.mul_(each).sum(dim=1).mean(dim=1, dtype=torch.float64))
        mean = self.probabilities.update(torch.cat(probabilities), len(plain))  # (G, K)
        entropy = self.entropies.update(torch.cat(entropies), len(plain))
        information = -torch.xlogy(mean, mean).sum(dim=1) - entropy  # (G,), in nats
        best = int(information.argmax())
        return float(GRID[best]) if information[best] - information[0] >= MIN_GAIN else 0.0


def information_weight(classes: int) -> float:
    """Weight of mutual information beside the slope. With fewer images than classes it sees lost confidence only."""
    return 0.5 / (1 + classes / 50)


def slope(level: Tensor, offset: Tensor) -> float:
    """How large the level is beside the offset, both centred (K,), from 0 to 1.

    This is the geometric mean of the slope of a regression, which noise in the offset of many classes makes too small,
    and of the ratio of sizes, which ignores how the two agree.
    """
    size = float(offset.norm())
    correlated = max(0.0, correlation(level, offset))
    return min(1.0, math.sqrt(correlated) * float(level.norm()) / size) if size > 0 else 0.0
